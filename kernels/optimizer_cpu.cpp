#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "kernels/dispatch.h"
#include "kernels/multiversion_cpu.h"
#include "kernels/optimizer.h"

namespace annulus::kernels {

namespace {

void check_rounded(const char* op, const Tensor& rounded, const Shape& shape, Device device) {
  if (rounded.empty()) return;
  require<ShapeError>(device.is_cuda(),
                      "{}: weights rounded to bf16 are for CUDA devices; the CPU computes in f32", op);
  check_tensor(op, "rounded", rounded, shape, device, DType::bf16);
}

}  // namespace

void sgd_update(StreamView stream, const SgdOptions& options, const StepValues* values,
                const GradientScaling& scaling, const Tensor& gradient, const Tensor& weights,
                const Tensor& momentum, const Tensor& rounded) {
  const Shape& shape = gradient.shape();
  check_tensor("sgd_update", "gradient", gradient, shape, stream.device());
  check_tensor("sgd_update", "weights", weights, shape, stream.device());
  if (options.momentum != 0) check_tensor("sgd_update", "momentum", momentum, shape, stream.device());
  check_rounded("sgd_update", rounded, shape, stream.device());
  ANNULUS_DISPATCH(stream, sgd_update, options, values, scaling, gradient, weights, momentum, rounded);
}

void adamw_update(StreamView stream, const AdamWOptions& options, const StepValues* values,
                  const GradientScaling& scaling, const Tensor& gradient, const Tensor& weights,
                  const Tensor& first_moment, const Tensor& second_moment, const Tensor& rounded) {
  const Shape& shape = gradient.shape();
  check_tensor("adamw_update", "gradient", gradient, shape, stream.device());
  check_tensor("adamw_update", "weights", weights, shape, stream.device());
  check_tensor("adamw_update", "first_moment", first_moment, shape, stream.device());
  check_tensor("adamw_update", "second_moment", second_moment, shape, stream.device());
  check_rounded("adamw_update", rounded, shape, stream.device());
  ANNULUS_DISPATCH(stream, adamw_update, options, values, scaling, gradient, weights, first_moment,
                   second_moment, rounded);
}

void update_running_average(StreamView stream, float decay, const float* statistics, const Tensor& sum,
                            const Tensor& running) {
  check_tensor("update_running_average", "sum", sum, sum.shape(), stream.device());
  check_tensor("update_running_average", "running", running, sum.shape(), stream.device());
  ANNULUS_DISPATCH(stream, update_running_average, decay, statistics, sum, running);
}

namespace cpu {
namespace {

// What GradientScaling comes to: g = gradient / count * clip.
struct Averaging {
  bool skip;
  float count, clip;
};

// Whether the step has samples and a finite loss: {loss sum, hits, samples}.
bool is_sound(const float* statistics) { return statistics[2] > 0 && std::isfinite(statistics[0]); }

Averaging averaging(const GradientScaling& scaling) {
  Averaging result{!is_sound(scaling.statistics), scaling.statistics[2], 1};
  if (scaling.squared_norm != nullptr) {
    if (!std::isfinite(*scaling.squared_norm)) result.skip = true;
    const float norm = std::sqrt(*scaling.squared_norm) / result.count;
    const float ratio = scaling.clip_norm / (norm + 1e-6f);
    if (ratio < 1) result.clip = ratio;
  }
  return result;
}

// One instruction stream per choice of momentum: the choice is made outside the loop.
ANNULUS_MULTIVERSION void sgd_loop(std::size_t count, const SgdOptions& o, float rate, Averaging by,
                                   const float* gradient, float* weights) {
  const float decay = o.weight_decay;
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i)
    weights[i] -= rate * (gradient[i] / by.count * by.clip + decay * weights[i]);
}

ANNULUS_MULTIVERSION void sgd_momentum_loop(std::size_t count, const SgdOptions& o, float rate, Averaging by,
                                            const float* gradient, float* weights, float* momentum) {
  const float decay = o.weight_decay, mu = o.momentum;
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    momentum[i] = mu * momentum[i] + (gradient[i] / by.count * by.clip + decay * weights[i]);
    weights[i] -= rate * momentum[i];
  }
}

ANNULUS_MULTIVERSION void sgd_nesterov_loop(std::size_t count, const SgdOptions& o, float rate, Averaging by,
                                            const float* gradient, float* weights, float* momentum) {
  const float decay = o.weight_decay, mu = o.momentum;
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    const float g = gradient[i] / by.count * by.clip + decay * weights[i];
    momentum[i] = mu * momentum[i] + g;
    weights[i] -= rate * (g + mu * momentum[i]);
  }
}

struct AdamWFactors {
  float keep_weight, beta1, gain1, beta2, gain2, step, inverse_root2, epsilon;
};

ANNULUS_MULTIVERSION void adamw_loop(std::size_t count, const AdamWFactors& k, Averaging by,
                                     const float* gradient, float* weights, float* first_moment,
                                     float* second_moment) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    const float g = gradient[i] / by.count * by.clip;
    first_moment[i] = k.beta1 * first_moment[i] + k.gain1 * g;
    second_moment[i] = k.beta2 * second_moment[i] + k.gain2 * g * g;
    const float denominator = std::sqrt(second_moment[i]) * k.inverse_root2 + k.epsilon;
    weights[i] = k.keep_weight * weights[i] - k.step * first_moment[i] / denominator;
  }
}

ANNULUS_MULTIVERSION void running_average_loop(std::size_t count, float decay, float samples,
                                               const float* sum, float* running) {
  const float gain = 1 - decay;
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) running[i] = decay * running[i] + gain * (sum[i] / samples);
}

}  // namespace

void sgd_update(StreamView, const SgdOptions& options, const StepValues* values,
                const GradientScaling& scaling, const Tensor& gradient, const Tensor& weights,
                const Tensor& momentum, const Tensor&) {
  const Averaging by = averaging(scaling);
  if (by.skip) return;
  const std::size_t count = gradient.elements();
  const float rate = values->learning_rate;
  if (options.momentum == 0)
    sgd_loop(count, options, rate, by, gradient.as<float>(), weights.as<float>());
  else if (options.nesterov)
    sgd_nesterov_loop(count, options, rate, by, gradient.as<float>(), weights.as<float>(),
                      momentum.as<float>());
  else
    sgd_momentum_loop(count, options, rate, by, gradient.as<float>(), weights.as<float>(),
                      momentum.as<float>());
}

void adamw_update(StreamView, const AdamWOptions& options, const StepValues* values,
                  const GradientScaling& scaling, const Tensor& gradient, const Tensor& weights,
                  const Tensor& first_moment, const Tensor& second_moment, const Tensor&) {
  const Averaging by = averaging(scaling);
  if (by.skip) return;
  AdamWFactors factors{};
  factors.keep_weight = 1 - values->learning_rate * options.weight_decay;
  factors.beta1 = options.beta1;
  factors.gain1 = 1 - options.beta1;
  factors.beta2 = options.beta2;
  factors.gain2 = 1 - options.beta2;
  factors.step = values->adamw_step_size;
  factors.inverse_root2 = values->adamw_inverse_root_correction;
  factors.epsilon = options.epsilon;
  adamw_loop(gradient.elements(), factors, by, gradient.as<float>(), weights.as<float>(),
             first_moment.as<float>(), second_moment.as<float>());
}

void update_running_average(StreamView, float decay, const float* statistics, const Tensor& sum,
                            const Tensor& running) {
  if (!is_sound(statistics)) return;
  running_average_loop(sum.elements(), decay, statistics[2], sum.as<float>(), running.as<float>());
}

}  // namespace cpu
}  // namespace annulus::kernels
