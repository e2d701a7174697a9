#include <cmath>

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
    const float norm = sqrtf(*scaling.squared_norm) / result.samples;
    const float ratio = scaling.clip_norm / (norm + 1e-6f);
    if (!(ratio >= 1)) result.clip = ratio;  // a NaN norm is passed on
  }
  return result;
}

struct Sgd {
  SgdOptions options;
  GradientScaling scaling;
  const float* gradient;
  float* weights;
  float* momentum;  // null without momentum

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
    for (int i = 0; i < Width; ++i) w.value[i] -= options.learning_rate * g.value[i];
    store(weights + element, w);
  }
};

struct AdamW {
  AdamWOptions options;
  float step_size;                 // learning_rate / (1 - beta1^t)
  float inverse_root_correction2;  // 1 / sqrt(1 - beta2^t)
  GradientScaling scaling;
  const float* gradient;
  float* weights;
  float* first_moment;
  float* second_moment;

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
      const float denominator = sqrtf(v.value[i]) * inverse_root_correction2 + options.epsilon;
      w.value[i] = (1 - options.learning_rate * options.weight_decay) * w.value[i] -
                   step_size * m.value[i] / denominator;
    }
    store(weights + element, w);
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

void sgd_update(StreamView stream, const SgdOptions& options, const GradientScaling& scaling,
                const Tensor& gradient, const Tensor& weights, const Tensor& momentum) {
  float* const moments = options.momentum == 0 ? nullptr : momentum.as<float>();
  for_each_pack(stream, weights.elements(), {gradient.data(), weights.data(), moments},
                Sgd{options, scaling, gradient.as<float>(), weights.as<float>(), moments});
}

void adamw_update(StreamView stream, const AdamWOptions& options, const GradientScaling& scaling,
                  const Tensor& gradient, const Tensor& weights, const Tensor& first_moment,
                  const Tensor& second_moment) {
  AdamW update{options,
               static_cast<float>(options.learning_rate / (1 - options.beta1_power)),
               static_cast<float>(1 / std::sqrt(1 - options.beta2_power)),
               scaling,
               gradient.as<float>(),
               weights.as<float>(),
               first_moment.as<float>(),
               second_moment.as<float>()};
  for_each_pack(stream, weights.elements(),
                {gradient.data(), weights.data(), first_moment.data(), second_moment.data()}, update);
}

void update_running_average(StreamView stream, float decay, const float* statistics, const Tensor& sum,
                            const Tensor& running) {
  for_each_pack(stream, sum.elements(), {sum.data(), running.data()},
                RunningAverage{decay, statistics, sum.as<float>(), running.as<float>()});
}

}  // namespace annulus::kernels::cuda
