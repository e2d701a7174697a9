// Softmax, cross entropy and their gradient in one pass over the logits, stable for large logits.
#pragma once

#include <cstdint>

#include "core/base/stream.h"
#include "core/base/tensor.h"

namespace annulus::kernels {

/// Rows with this label (padding) add nothing to the loss, the hits, the count or the gradient.
inline constexpr std::int32_t kIgnoredLabel = -1;

/// Bytes of workspace for `rows` rows of logits on `device`; to be aligned to 16.
std::size_t softmax_cross_entropy_workspace_bytes(Device device, std::size_t rows);

/// For logits [batch, classes] (f32 or, on CUDA devices, bf16) and labels [batch] (i32 in [0, classes) or
/// kIgnoredLabel):
///   dlogits (empty, or [batch, classes] of the dtype of logits, which it may alias) = softmax(logits) -
///   target, the gradient
///     of the SUM of losses: the division by the number of samples is the optimizer's, because only the
///     global batch knows it;
///   statistics (f32, 3 elements) = {sum of losses, rows whose first largest logit is the label, rows
///     counted}, overwritten.
/// The target is (1 - label_smoothing) * one-hot + label_smoothing / classes, as in PyTorch.
void softmax_cross_entropy(StreamView stream, const Tensor& logits, const Tensor& labels,
                           float label_smoothing, void* workspace, const Tensor& dlogits,
                           const Tensor& statistics);

namespace cpu {
decltype(kernels::softmax_cross_entropy) softmax_cross_entropy;
}
namespace cuda {
std::size_t softmax_cross_entropy_workspace_bytes(std::size_t rows);
decltype(kernels::softmax_cross_entropy) softmax_cross_entropy;
}  // namespace cuda

}  // namespace annulus::kernels
