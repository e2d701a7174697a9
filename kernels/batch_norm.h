// Batch normalisation over the last axis: x is [rows, channels], where rows = batch * height * width.
// S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015, https://arxiv.org/abs/1502.03167
// x, y and their gradients are f32 or, on CUDA devices, all bf16; per-channel tensors are [channels] and f32;
// outputs are overwritten; sums run in a fixed order. `workspace` has batch_norm_workspace_bytes(), aligned
// to 16.
#pragma once

#include "core/base/stream.h"
#include "core/base/tensor.h"

namespace annulus::kernels {

/// Bytes of workspace for x of [rows, channels] on `device`.
std::size_t batch_norm_workspace_bytes(Device device, std::size_t rows, std::size_t channels);

/// Normalises with the moments of x itself. Writes y = (x - mean) * inverse_std * scale + shift, and the
/// per-channel mean, inverse_std = 1 / sqrt(biased variance + epsilon) and unbiased variance (for the
/// running statistics; with one row it equals the biased one). y may alias x.
void batch_norm_forward(StreamView stream, const Tensor& x, const Tensor& scale, const Tensor& shift,
                        float epsilon, void* workspace, const Tensor& y, const Tensor& mean,
                        const Tensor& inverse_std, const Tensor& unbiased_variance);

/// Normalises with given running moments: y = (x - mean) / sqrt(variance + epsilon) * scale + shift.
void batch_norm_inference(StreamView stream, const Tensor& x, const Tensor& scale, const Tensor& shift,
                          const Tensor& mean, const Tensor& variance, float epsilon, const Tensor& y);

/// Gradients of batch_norm_forward: dx (may alias dy), dscale, dshift.
void batch_norm_backward(StreamView stream, const Tensor& dy, const Tensor& x, const Tensor& scale,
                         const Tensor& mean, const Tensor& inverse_std, void* workspace, const Tensor& dx,
                         const Tensor& dscale, const Tensor& dshift);

namespace cpu {
decltype(kernels::batch_norm_forward) batch_norm_forward;
decltype(kernels::batch_norm_inference) batch_norm_inference;
decltype(kernels::batch_norm_backward) batch_norm_backward;
}  // namespace cpu
namespace cuda {
std::size_t batch_norm_workspace_bytes(std::size_t rows, std::size_t channels);
decltype(kernels::batch_norm_forward) batch_norm_forward;
decltype(kernels::batch_norm_inference) batch_norm_inference;
decltype(kernels::batch_norm_backward) batch_norm_backward;
}  // namespace cuda

}  // namespace annulus::kernels
