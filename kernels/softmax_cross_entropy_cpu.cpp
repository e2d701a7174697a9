#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "kernels/dispatch.h"
#include "kernels/softmax_cross_entropy.h"

namespace annulus::kernels {

std::size_t softmax_cross_entropy_workspace_bytes(Device device, std::size_t rows) {
#if ANNULUS_HAS_CUDA
  if (device.is_cuda()) return cuda::softmax_cross_entropy_workspace_bytes(rows);
#endif
  static_cast<void>(device);
  static_cast<void>(rows);
  return 0;
}

void softmax_cross_entropy(StreamView stream, const Tensor& logits, const Tensor& labels,
                           float label_smoothing, void* workspace, const Tensor& dlogits,
                           const Tensor& statistics) {
  constexpr const char* kOp = "softmax_cross_entropy";
  const Device device = stream.device();
  check_rank(kOp, "logits", logits, 2);
  const DType dtype = check_activation(kOp, "logits", logits, device);
  require<ShapeError>(logits.shape()[1] > 0, "{}: there must be at least one class", kOp);
  check_tensor(kOp, "labels", labels, {logits.shape()[0]}, device, DType::i32);
  if (!dlogits.empty()) check_tensor(kOp, "dlogits", dlogits, logits.shape(), device, dtype);
  check_tensor(kOp, "statistics", statistics, {3}, device);
  ANNULUS_DISPATCH(stream, softmax_cross_entropy, logits, labels, label_smoothing, workspace, dlogits,
                   statistics);
}

namespace cpu {
namespace {

// With m the largest logit and z the sum of exp(logit - m), the loss of a row is
//   sum over c of target[c] * (log z + m - logit[c])
//     = log z + (1 - smoothing) * (m - logit[label]) + smoothing * mean over c of (m - logit[c]).
// `gradient` is null or a row, which may be `logits` itself.
double row_loss_and_gradient(std::size_t classes, const float* logits, std::size_t label, double smoothing,
                             float* gradient) {
  const float largest = *std::max_element(logits, logits + classes);
  const double label_distance = static_cast<double>(largest) - static_cast<double>(logits[label]);
  double normaliser = 0, distances = 0;
  for (std::size_t c = 0; c < classes; ++c) {
    const float distance = largest - logits[c];
    const float exponential = std::exp(-distance);
    normaliser += static_cast<double>(exponential);
    distances += static_cast<double>(distance);
    if (gradient != nullptr) gradient[c] = exponential;
  }
  const double smooth_target = smoothing / static_cast<double>(classes);
  if (gradient != nullptr) {
    for (std::size_t c = 0; c < classes; ++c)
      gradient[c] = static_cast<float>(static_cast<double>(gradient[c]) / normaliser - smooth_target);
    gradient[label] -= static_cast<float>(1 - smoothing);
  }
  // Not with a smoothing of 0: an infinite distance would make it NaN.
  const double smooth_loss = smoothing > 0 ? smooth_target * distances : 0;
  return std::log(normaliser) + (1 - smoothing) * label_distance + smooth_loss;
}

}  // namespace

void softmax_cross_entropy(StreamView, const Tensor& logits, const Tensor& labels, float label_smoothing,
                           void*, const Tensor& dlogits, const Tensor& statistics) {
  const std::size_t batch = logits.shape()[0], classes = logits.shape()[1];
  const float* row = logits.as<float>();
  float* gradient = dlogits.empty() ? nullptr : dlogits.as<float>();
  double loss = 0;
  std::size_t hits = 0, counted = 0;
  for (std::size_t sample = 0; sample < batch; ++sample, row += classes) {
    float* row_gradient = gradient == nullptr ? nullptr : gradient + sample * classes;
    const std::int32_t label = labels.as<std::int32_t>()[sample];
    if (label == kIgnoredLabel) {
      if (row_gradient != nullptr) std::fill_n(row_gradient, classes, 0.0f);
      continue;
    }
    require<DataError>(label >= 0 && static_cast<std::size_t>(label) < classes,
                       "softmax_cross_entropy: label {} of row {} is not one of the {} classes", label,
                       sample, classes);
    const float* first_largest = std::max_element(row, row + classes);
    hits += first_largest - row == label ? 1 : 0;
    ++counted;
    loss += row_loss_and_gradient(classes, row, static_cast<std::size_t>(label),
                                  static_cast<double>(label_smoothing), row_gradient);
  }
  statistics.as<float>()[0] = static_cast<float>(loss);
  statistics.as<float>()[1] = static_cast<float>(hits);
  statistics.as<float>()[2] = static_cast<float>(counted);
}

}  // namespace cpu
}  // namespace annulus::kernels
