// Element by element over any shape, overwriting; outputs may alias inputs. All tensors of a call are f32 or,
// on CUDA devices, all bf16: computed in f32 and rounded once.
#pragma once

#include "core/base/stream.h"
#include "core/base/tensor.h"

namespace annulus::kernels {

/// y = value everywhere.
void fill(StreamView stream, float value, const Tensor& y);

/// y = factor * x.
void scale(StreamView stream, float factor, const Tensor& x, const Tensor& y);

/// y = a + b, one rounding per element. Gradient accumulation and residual connections.
void add(StreamView stream, const Tensor& a, const Tensor& b, const Tensor& y);

/// y = x in another dtype, rounded to nearest even: any of f32, bf16 and f16 to any, on every device. x and y
/// may not alias if their dtypes differ.
void cast(StreamView stream, const Tensor& x, const Tensor& y);

/// Swaps the two inner axes of [batch, rows, columns]: y[b][c][r] = x[b][r][c]. Turns [batch, height *
/// width, channels] into PyTorch's flattening order and back. x and y must not alias.
void transpose_inner(StreamView stream, const Tensor& x, const Tensor& y);

namespace cpu {
decltype(kernels::fill) fill;
decltype(kernels::scale) scale;
decltype(kernels::add) add;
decltype(kernels::cast) cast;
decltype(kernels::transpose_inner) transpose_inner;
}  // namespace cpu
namespace cuda {
decltype(kernels::fill) fill;
decltype(kernels::scale) scale;
decltype(kernels::add) add;
decltype(kernels::cast) cast;
decltype(kernels::transpose_inner) transpose_inner;
}  // namespace cuda

}  // namespace annulus::kernels
