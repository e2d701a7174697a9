// Optimizer updates: one launch over a contiguous range of the arena. All tensors are of one shape, updated
// in place, element by element, and f32; but for `rounded`, which is empty, or bf16 and overwritten with the
// new weights rounded to nearest even. `values` is in memory of the stream's device; of it the learning rate
// is read, and AdamW's numbers.
#pragma once

#include "core/base/step_values.h"
#include "core/base/stream.h"
#include "core/base/tensor.h"

namespace annulus::kernels {

/// Turns the summed gradient into the averaged and clipped one. Both pointers are on the stream's device,
/// so that nothing waits for the host. `statistics` are the {loss sum, hits, samples} of the global batch,
/// as softmax_cross_entropy writes them and the ranks sum them:
///   g = gradient / samples
///   g = g * min(1, clip_norm / (norm + 1e-6)), norm = sqrt(*squared_norm) / samples, if squared_norm is set
/// which is torch.nn.utils.clip_grad_norm_ applied to the averaged gradient. The update is skipped, and
/// nothing touched, if samples is 0, or the loss sum or the squared norm is NaN or infinite: a broken step
/// never reaches the weights.
struct GradientScaling {
  const float* statistics = nullptr;
  const float* squared_norm = nullptr;  ///< of the whole summed gradient; null: no clipping
  float clip_norm = 0;
};

struct SgdOptions {
  float momentum = 0;
  float weight_decay = 0;  ///< added to the gradient, as in torch.optim.SGD
  bool nesterov = false;
};

/// g += weight_decay * w;  m = momentum * m + g;  g = nesterov ? g + momentum * m : m;  w -= lr * g.
/// With momentum 0, `momentum` is not touched and may be empty. I. Sutskever et al., ICML 2013.
void sgd_update(StreamView stream, const SgdOptions& options, const StepValues* values,
                const GradientScaling& scaling, const Tensor& gradient, const Tensor& weights,
                const Tensor& momentum, const Tensor& rounded = {});

struct AdamWOptions {
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.01f;  ///< decoupled: w -= lr * weight_decay * w
};

/// AdamW as in torch.optim.AdamW. I. Loshchilov, F. Hutter, ICLR 2019, https://arxiv.org/abs/1711.05101
void adamw_update(StreamView stream, const AdamWOptions& options, const StepValues* values,
                  const GradientScaling& scaling, const Tensor& gradient, const Tensor& weights,
                  const Tensor& first_moment, const Tensor& second_moment, const Tensor& rounded = {});

/// running = decay * running + (1 - decay) * sum / samples: BatchNorm's running statistics from the
/// sample-weighted moments of all micro-batches. Skipped when an update is.
void update_running_average(StreamView stream, float decay, const float* statistics, const Tensor& sum,
                            const Tensor& running);

namespace cpu {
decltype(kernels::sgd_update) sgd_update;
decltype(kernels::adamw_update) adamw_update;
decltype(kernels::update_running_average) update_running_average;
}  // namespace cpu
namespace cuda {
decltype(kernels::sgd_update) sgd_update;
decltype(kernels::adamw_update) adamw_update;
decltype(kernels::update_running_average) update_running_average;
}  // namespace cuda

}  // namespace annulus::kernels
