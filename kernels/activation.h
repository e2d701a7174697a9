// ReLU. Any shape, f32 or (on CUDA devices) bf16, overwriting; outputs may alias inputs.
#pragma once

#include "core/base/stream.h"
#include "core/base/tensor.h"

namespace annulus::kernels {

/// y = max(x, 0); NaN stays NaN.
void relu_forward(StreamView stream, const Tensor& x, const Tensor& y);

/// dx = dy where y > 0, else 0; y is the output of the forward pass.
void relu_backward(StreamView stream, const Tensor& dy, const Tensor& y, const Tensor& dx);

namespace cpu {
decltype(kernels::relu_forward) relu_forward;
decltype(kernels::relu_backward) relu_backward;
}  // namespace cpu
namespace cuda {
decltype(kernels::relu_forward) relu_forward;
decltype(kernels::relu_backward) relu_backward;
}  // namespace cuda

}  // namespace annulus::kernels
