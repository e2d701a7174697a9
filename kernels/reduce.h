// Reductions of a tensor of any shape to one number; x is f32, or bf16 on CUDA devices. The order of a sum
// depends on dtype, element count and alignment alone. `result` is one element on the same device,
// overwritten.
#pragma once

#include <cstddef>

#include "core/base/stream.h"
#include "core/base/tensor.h"

namespace annulus::kernels {

/// Bytes of workspace that the reductions below need for `elements` elements on `device`.
std::size_t reduce_workspace_bytes(Device device, std::size_t elements);

/// result (f32) = sum of x. Pairwise or better: the error grows with log2 of the count.
void sum(StreamView stream, const Tensor& x, void* workspace, const Tensor& result);

/// result (f32) = sum of x^2, for clipping by the global norm. Pairwise or better.
void squared_norm(StreamView stream, const Tensor& x, void* workspace, const Tensor& result);

/// result (f32) = largest |x|, NaN if there is one, 0 of no elements.
void absmax(StreamView stream, const Tensor& x, void* workspace, const Tensor& result);

/// result (i64) = index of the first NaN or infinite element, or -1.
void first_non_finite(StreamView stream, const Tensor& x, void* workspace, const Tensor& result);

namespace cpu {
std::size_t reduce_workspace_bytes(std::size_t elements);
decltype(kernels::sum) sum;
decltype(kernels::squared_norm) squared_norm;
decltype(kernels::absmax) absmax;
decltype(kernels::first_non_finite) first_non_finite;
}  // namespace cpu
namespace cuda {
std::size_t reduce_workspace_bytes(std::size_t elements);
decltype(kernels::sum) sum;
decltype(kernels::squared_norm) squared_norm;
decltype(kernels::absmax) absmax;
decltype(kernels::first_non_finite) first_non_finite;
}  // namespace cuda

}  // namespace annulus::kernels
