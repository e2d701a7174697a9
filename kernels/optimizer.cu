#include "core/base/half.h"
#include "kernels/device/pack.h"
#include "kernels/optimizer.h"

namespace annulus::kernels::cuda {
namespace {

// What GradientScaling comes to: g = gradient / samples * clip, unless the step is broken.
struct Averaging {
  bool skip;
  float samples, clip;

  __device__ float operator()(float gradient) const { return gradient / samples * clip; }
};

// Whether the step has samples and a finite loss: {loss sum, hits, samples}.
__device__ bool is_sound(const float* statistics) { return statistics[2] > 0 && isfinite(statistics[0]); }

__device__ Averaging averaging(const GradientScaling& scaling) {
  Averaging result{!is_sound(scaling.statistics), scaling.statistics[2], 1};
  if (scaling.squared_norm != nullptr) {
    if (!isfinite(*scaling.squared_norm)) result.skip = true;
    const float norm = sqrtf(*scaling.squared_norm) / result.samples;
    const float ratio = scaling.clip_norm / (norm + 1e-6f);
    if (ratio < 1) result.clip = ratio;
  }
  return result;
}

// Writes the rounded copy of new weights where there is one.
template <int Width>
__device__ void store_rounded(BFloat16* rounded, std::size_t element, const Pack<Width>& weights) {
  if (rounded != nullptr) store_float(rounded + element, weights);
}

struct Sgd {
  SgdOptions options;
  const StepValues* values;
  GradientScaling scaling;
  const float* gradient;
  float* weights;
  float* momentum;    // null without momentum
  BFloat16* rounded;  // null without a rounded copy

  template <int Width>
  __device__ void operator()(std::size_t element) const {
    const Averaging average = averaging(scaling);
    if (average.skip) return;
    Pack<Width> g = load<Width>(gradient + element);
    Pack<Width> w = load<Width>(weights + element);
    for (int i = 0; i < Width; ++i) g.value[i] = average(g.value[i]) + options.weight_decay * w.value[i];
    if (momentum != nullptr) {
      Pack<Width> m = load<Width>(momentum + element);
      for (int i = 0; i < Width; ++i) {
        m.value[i] = options.momentum * m.value[i] + g.value[i];
        g.value[i] = options.nesterov ? g.value[i] + options.momentum * m.value[i] : m.value[i];
      }
      store(momentum + element, m);
    }
    for (int i = 0; i < Width; ++i) w.value[i] -= values->learning_rate * g.value[i];
    store(weights + element, w);
    store_rounded(rounded, element, w);
  }
};

struct AdamW {
  AdamWOptions options;
  const StepValues* values;
  GradientScaling scaling;
  const float* gradient;
  float* weights;
  float* first_moment;
  float* second_moment;
  BFloat16* rounded;  // null without a rounded copy

  template <int Width>
  __device__ void operator()(std::size_t element) const {
    const Averaging average = averaging(scaling);
    if (average.skip) return;
    const Pack<Width> g = load<Width>(gradient + element);
    Pack<Width> w = load<Width>(weights + element);
    Pack<Width> m = load<Width>(first_moment + element);
    Pack<Width> v = load<Width>(second_moment + element);
    for (int i = 0; i < Width; ++i) {
      const float scaled = average(g.value[i]);
      m.value[i] = options.beta1 * m.value[i] + (1 - options.beta1) * scaled;
      v.value[i] = options.beta2 * v.value[i] + (1 - options.beta2) * scaled * scaled;
      const float denominator = sqrtf(v.value[i]) * values->adamw_inverse_root_correction + options.epsilon;
      w.value[i] = (1 - values->learning_rate * options.weight_decay) * w.value[i] -
                   values->adamw_step_size * m.value[i] / denominator;
    }
    store(weights + element, w);
    store_rounded(rounded, element, w);
    store(first_moment + element, m);
    store(second_moment + element, v);
  }
};

struct RunningAverage {
  float decay;
  const float* statistics;
  const float* sum;
  float* running;

  template <int Width>
  __device__ void operator()(std::size_t element) const {
    if (!is_sound(statistics)) return;
    const Pack<Width> fresh = load<Width>(sum + element);
    Pack<Width> average = load<Width>(running + element);
    for (int i = 0; i < Width; ++i)
      average.value[i] = decay * average.value[i] + (1 - decay) * (fresh.value[i] / statistics[2]);
    store(running + element, average);
  }
};

}  // namespace

void sgd_update(StreamView stream, const SgdOptions& options, const StepValues* values,
                const GradientScaling& scaling, const Tensor& gradient, const Tensor& weights,
                const Tensor& momentum, const Tensor& rounded) {
  float* const moments = options.momentum == 0 ? nullptr : momentum.as<float>();
  for_each_pack<kPackWidth<float>>(stream, weights.elements(),
                                   {gradient, weights, options.momentum == 0 ? Tensor() : momentum, rounded},
                                   Sgd{options, values, scaling, gradient.as<float>(), weights.as<float>(),
                                       moments, rounded.empty() ? nullptr : rounded.as<BFloat16>()});
}

void adamw_update(StreamView stream, const AdamWOptions& options, const StepValues* values,
                  const GradientScaling& scaling, const Tensor& gradient, const Tensor& weights,
                  const Tensor& first_moment, const Tensor& second_moment, const Tensor& rounded) {
  AdamW update{options,
               values,
               scaling,
               gradient.as<float>(),
               weights.as<float>(),
               first_moment.as<float>(),
               second_moment.as<float>(),
               rounded.empty() ? nullptr : rounded.as<BFloat16>()};
  for_each_pack<kPackWidth<float>>(stream, weights.elements(),
                                   {gradient, weights, first_moment, second_moment, rounded}, update);
}

void update_running_average(StreamView stream, float decay, const float* statistics, const Tensor& sum,
                            const Tensor& running) {
  for_each_pack<kPackWidth<float>>(stream, sum.elements(), {sum, running},
                                   RunningAverage{decay, statistics, sum.as<float>(), running.as<float>()});
}

}  // namespace annulus::kernels::cuda
