#include "kernels/optimizer.h"

#include <gtest/gtest.h>

#include "core/base/half.h"
#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_values.h"
#include "tests/support/real_array.h"

namespace annulus {
namespace {

using kernels::AdamWOptions;
using kernels::GradientScaling;
using kernels::SgdOptions;
using test::DeviceArray;
using test::DeviceStepValues;
using test::RealArray;
using test::to_double;

constexpr std::size_t kCounts[] = {0, 1, 7, 16, 33, 1009};
constexpr std::size_t kSteps = 5;
constexpr float kSamples = 48;
constexpr float kLearningRate = 0.1f;
constexpr float kAdamWRate = 0.01f;

// The gradient of a step, summed over the samples. The first is always 0: AdamW then divides 0 by epsilon.
std::vector<float> gradient_of(std::size_t count, std::size_t step) {
  auto gradient = test::uniform(count, -kSamples, kSamples, 10 + step);
  if (count > 0) gradient[0] = 0;
  return gradient;
}

double squared_norm(const std::vector<float>& x) {
  double total = 0;
  for (const float value : x) total += static_cast<double>(value) * static_cast<double>(value);
  return total;
}

// What the factor on the averaged gradient is: torch.nn.utils.clip_grad_norm_.
double clip(const std::vector<float>& gradient, float clip_norm) {
  const double norm = std::sqrt(squared_norm(gradient)) / static_cast<double>(kSamples);
  return clip_norm == 0 ? 1 : std::min(1.0, static_cast<double>(clip_norm) / (norm + 1e-6));
}

// Statistics and squared norm on the device, as an optimizer finds them.
class Scaling {
 public:
  Scaling(const Stream& stream, float loss, float samples, const std::vector<float>& gradient,
          float clip_norm)
      : statistics_(stream, {3}, {loss, 0, samples}),
        squared_norm_(stream, {1}, {static_cast<float>(squared_norm(gradient))}),
        clip_norm_(clip_norm) {}

  GradientScaling get() const {
    return {statistics_.tensor().as<float>(), clip_norm_ == 0 ? nullptr : squared_norm_.tensor().as<float>(),
            clip_norm_};
  }

 private:
  DeviceArray<float> statistics_, squared_norm_;
  float clip_norm_;
};

TEST(Sgd, follows_its_formulas_over_several_steps) {
  for (const Device device : test::test_devices())
    for (const std::size_t count : kCounts)
      for (const float clip_norm : {0.0f, 0.7f, 1e6f})
        for (const SgdOptions options :
             {SgdOptions{}, SgdOptions{0, 0.01f}, SgdOptions{0.9f, 0.01f}, SgdOptions{0.9f, 0.01f, true}}) {
          SCOPED_TRACE(fmt::format("{} elements, clip {}, momentum {} on {}", count, clip_norm,
                                   options.momentum, device.to_string()));
          const Stream stream(device);
          const auto initial = test::uniform(count, -1, 1, 1);
          const DeviceArray<float> weights(stream, {count}, initial);
          const DeviceArray<float> momentum(stream, {count}, std::vector<float>(count, 0.0f));
          const DeviceStepValues values(stream, {.learning_rate = kLearningRate});
          std::vector<double> w = to_double(initial), m(count);
          for (std::size_t step = 0; step < kSteps; ++step) {
            const auto gradient = gradient_of(count, step);
            const Scaling scaling(stream, 1, kSamples, gradient, clip_norm);
            kernels::sgd_update(stream, options, values.get(), scaling.get(),
                                DeviceArray<float>(stream, {count}, gradient), weights,
                                options.momentum == 0 ? Tensor() : momentum.tensor());
            stream.synchronize();
            const double factor = clip(gradient, clip_norm), mu = static_cast<double>(options.momentum);
            for (std::size_t i = 0; i < count; ++i) {
              double g = static_cast<double>(gradient[i]) / static_cast<double>(kSamples) * factor;
              g += static_cast<double>(options.weight_decay) * w[i];
              m[i] = mu * m[i] + g;
              const double direction = options.nesterov ? g + mu * m[i] : m[i];
              w[i] -= static_cast<double>(kLearningRate) * direction;
            }
          }
          // Values of order 1 after five steps of some five roundings each.
          test::expect_close("weights", weights.values(), w, {4, 2e-6});
          if (options.momentum != 0) test::expect_close("momentum", momentum.values(), m, {4, 4e-6});
        }
}

TEST(AdamW, follows_its_formulas_over_several_steps) {
  for (const Device device : test::test_devices())
    for (const std::size_t count : kCounts)
      for (const float clip_norm : {0.0f, 0.7f}) {
        SCOPED_TRACE(fmt::format("{} elements, clip {} on {}", count, clip_norm, device.to_string()));
        const AdamWOptions options{.weight_decay = 0.1f};
        const Stream stream(device);
        const auto initial = test::uniform(count, -1, 1, 1);
        const std::vector<float> zeros(count, 0.0f);
        const DeviceArray<float> weights(stream, {count}, initial);
        const DeviceArray<float> first(stream, {count}, zeros), second(stream, {count}, zeros);
        std::vector<double> w = to_double(initial), m(count), v(count);
        const double beta1 = static_cast<double>(options.beta1), beta2 = static_cast<double>(options.beta2);
        const double rate = static_cast<double>(kAdamWRate);
        double beta1_power = 1, beta2_power = 1;
        for (std::size_t step = 0; step < kSteps; ++step) {
          beta1_power *= beta1;
          beta2_power *= beta2;
          const DeviceStepValues values(
              stream, {.learning_rate = kAdamWRate,
                       .adamw_step_size = static_cast<float>(rate / (1 - beta1_power)),
                       .adamw_inverse_root_correction = static_cast<float>(1 / std::sqrt(1 - beta2_power))});
          const auto gradient = gradient_of(count, step);
          const Scaling scaling(stream, 1, kSamples, gradient, clip_norm);
          kernels::adamw_update(stream, options, values.get(), scaling.get(),
                                DeviceArray<float>(stream, {count}, gradient), weights, first, second);
          stream.synchronize();
          const double factor = clip(gradient, clip_norm);
          for (std::size_t i = 0; i < count; ++i) {
            const double g = static_cast<double>(gradient[i]) / static_cast<double>(kSamples) * factor;
            w[i] -= rate * static_cast<double>(options.weight_decay) * w[i];
            m[i] = beta1 * m[i] + (1 - beta1) * g;
            v[i] = beta2 * v[i] + (1 - beta2) * g * g;
            w[i] -= rate * (m[i] / (1 - beta1_power)) /
                    (std::sqrt(v[i] / (1 - beta2_power)) + static_cast<double>(options.epsilon));
          }
        }
        // 1 - beta2 is exact only to 6e-8 / 1e-3 in f32, which scales the second moment.
        test::expect_close("first moment", first.values(), m, {16, 1e-7});
        test::expect_close("second moment", second.values(), v, {1000, 1e-9});
        test::expect_close("weights", weights.values(), w, {4, 3e-6});
      }
}

TEST(Optimizer, skips_a_step_without_samples_or_with_a_broken_loss) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> w{1, 2, 3}, m{4, 5, 6}, v{7, 8, 9};
  for (const Device device : test::test_devices())
    for (const auto& [loss, samples] :
         {std::pair{1.0f, 0.0f}, {nan, 8.0f}, {infinity, 8.0f}, {-infinity, 8.0f}}) {
      SCOPED_TRACE(fmt::format("loss {}, {} samples on {}", loss, samples, device.to_string()));
      const Stream stream(device);
      const DeviceArray<float> weights(stream, {3}, w), first(stream, {3}, m), second(stream, {3}, v);
      const DeviceArray<float> gradient(stream, {3}, {1, nan, 1});
      const Scaling scaling(stream, loss, samples, {1}, 0);
      const DeviceStepValues values(
          stream, {.learning_rate = 0.1f, .adamw_step_size = 1, .adamw_inverse_root_correction = 30});
      kernels::sgd_update(stream, {0.9f, 0.1f}, values.get(), scaling.get(), gradient, weights, first);
      kernels::adamw_update(stream, {}, values.get(), scaling.get(), gradient, weights, first, second);
      kernels::update_running_average(stream, 0.9f, scaling.get().statistics, gradient, second);
      test::expect_equal("weights", weights.values(), w);
      test::expect_equal("first moment", first.values(), m);
      test::expect_equal("second moment", second.values(), v);
    }
}

TEST(Optimizer, skips_a_step_whose_gradient_has_no_finite_norm) {
  for (const Device device : test::test_devices())
    for (const float broken :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      const Stream stream(device);
      const std::vector<float> g{1, broken};
      const DeviceArray<float> weights(stream, {2}, {1, 1}), first(stream, {2}, {2, 2}),
          second(stream, {2}, {3, 3});
      const DeviceArray<float> gradient(stream, {2}, g);
      const Scaling scaling(stream, 1, 1, g, 1);
      const DeviceStepValues values(stream, {.learning_rate = 0.1f, .adamw_step_size = 1});
      kernels::sgd_update(stream, {0.9f}, values.get(), scaling.get(), gradient, weights, first);
      kernels::adamw_update(stream, {}, values.get(), scaling.get(), gradient, weights, first, second);
      test::expect_equal("weights", weights.values(), std::vector<float>{1, 1});
      test::expect_equal("first moment", first.values(), std::vector<float>{2, 2});
      test::expect_equal("second moment", second.values(), std::vector<float>{3, 3});
    }
}

TEST(Optimizer, passes_a_gradient_on_that_is_not_finite_if_there_is_no_clipping) {
  for (const Device device : test::test_devices()) {
    const Stream stream(device);
    const std::vector<float> g{1, std::numeric_limits<float>::quiet_NaN()};
    const DeviceArray<float> weights(stream, {2}, {1, 1});
    const Scaling scaling(stream, 1, 1, g, 0);
    const DeviceStepValues values(stream, {.learning_rate = 0.1f});
    kernels::sgd_update(stream, {}, values.get(), scaling.get(), DeviceArray<float>(stream, {2}, g), weights,
                        {});
    stream.synchronize();
    EXPECT_FLOAT_EQ(weights.values()[0], 0.9f);
    EXPECT_TRUE(std::isnan(weights.values()[1]));
  }
}

TEST(Optimizer, keeps_a_rounded_copy_of_the_weights) {
  for (const Device device : test::test_devices()) {
    if (device.is_cpu()) continue;
    for (const std::size_t count : kCounts) {
      const Stream stream(device);
      const auto gradient = gradient_of(count, 1);
      const DeviceArray<float> weights(stream, {count}, test::uniform(count, -1, 1, 1));
      const std::vector<float> zeros(count, 0.0f);
      const DeviceArray<float> first(stream, {count}, zeros), second(stream, {count}, zeros);
      const DeviceArray<float> device_gradient(stream, {count}, gradient);
      const DeviceArray<BFloat16> rounded(stream, {count});
      const Scaling sound(stream, 1, kSamples, gradient, 0), broken(stream, 1, 0, gradient, 0);
      const DeviceStepValues values(
          stream, {.learning_rate = 0.1f, .adamw_step_size = 1, .adamw_inverse_root_correction = 30});
      const auto expect_rounded = [&] {
        const auto bits = rounded.values();
        const auto exact = weights.values();
        for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(bits[i].bits, to_bfloat16(exact[i]).bits) << i;
      };
      kernels::sgd_update(stream, {}, values.get(), sound.get(), device_gradient, weights, {}, rounded);
      expect_rounded();
      kernels::adamw_update(stream, {}, values.get(), sound.get(), device_gradient, weights, first, second,
                            rounded);
      expect_rounded();
      kernels::sgd_update(stream, {}, values.get(), broken.get(), device_gradient, weights, {}, rounded);
      expect_rounded();
    }
  }
}

// How many elements past an aligned address the arrays of an update start.
struct Places {
  std::size_t gradient = 0, weights = 0, first = 0, second = 0, rounded = 0;
};

// Updates at these places, and returns weights and moments.
std::vector<std::vector<float>> update_at(Device device, const Places& at) {
  constexpr std::size_t kCount = 37;
  const Stream stream(device);
  const auto array = [&](float low, std::uint64_t seed, std::size_t skip) {
    return RealArray(stream, {kCount}, DType::f32, test::uniform(kCount, low, 1, seed), skip);
  };
  const RealArray gradient = array(-1, 1, at.gradient), weights = array(-1, 2, at.weights);
  const RealArray first = array(-1, 3, at.first), second = array(0, 4, at.second);
  const RealArray rounded(stream, {kCount}, DType::bf16, std::vector<float>(kCount, 0.0f), at.rounded);
  const Tensor copy = device.is_cuda() ? rounded.tensor() : Tensor();
  const Scaling scaling(stream, 1, kSamples, {900}, 1);
  const DeviceStepValues values(
      stream, {.learning_rate = 0.1f, .adamw_step_size = 0.1f, .adamw_inverse_root_correction = 2});
  kernels::sgd_update(stream, {0.9f, 0.1f, true}, values.get(), scaling.get(), gradient, weights, first,
                      copy);
  kernels::adamw_update(stream, {}, values.get(), scaling.get(), gradient, weights, first, second, copy);
  kernels::update_running_average(stream, 0.9f, scaling.get().statistics, gradient, second);
  if (device.is_cuda())
    test::expect_equal("rounded", rounded.values(), test::rounded_to(DType::bf16, weights.values()));
  return {weights.values(), first.values(), second.values()};
}

TEST(Optimizer, does_not_depend_on_addresses) {
  for (const Device device : test::test_devices()) {
    const auto aligned = update_at(device, {});
    // Together, so that packs come after a head; each alone, so that there are none; and a copy in bf16 whose
    // packs are aligned where those of the weights are, or never.
    for (const Places at :
         {Places{1, 1, 1, 1, 1}, Places{3, 3, 3, 3, 3}, Places{1, 0, 0, 0, 0}, Places{0, 1, 0, 0, 0},
          Places{0, 0, 1, 0, 0}, Places{0, 0, 0, 1, 0}, Places{0, 0, 0, 0, 1}, Places{0, 0, 0, 0, 4}}) {
      const auto there = update_at(device, at);
      // Compilers may contract the code for packs and that for single elements differently.
      for (std::size_t i = 0; i < aligned.size(); ++i)
        test::expect_close(fmt::format("output {} on {}", i, device.to_string()), there[i], aligned[i],
                           {4, 1e-6});
    }
  }
}

TEST(Optimizer, updates_running_averages) {
  for (const Device device : test::test_devices())
    for (const std::size_t count : kCounts) {
      const Stream stream(device);
      const auto sum = test::uniform(count, -100, 100, 1), running = test::uniform(count, -1, 1, 2);
      std::vector<double> expected(count);
      for (std::size_t i = 0; i < count; ++i)
        expected[i] = 0.9 * static_cast<double>(running[i]) +
                      0.1 * static_cast<double>(sum[i]) / static_cast<double>(kSamples);
      const DeviceArray<float> average(stream, {count}, running);
      const Scaling scaling(stream, 1, kSamples, {}, 0);
      kernels::update_running_average(stream, 0.9f, scaling.get().statistics,
                                      DeviceArray<float>(stream, {count}, sum), average);
      stream.synchronize();
      test::expect_close("average", average.values(), expected, {4, 2e-7});
    }
}

TEST(Optimizer, refuses_shapes_that_differ) {
  const Stream stream(Device::cpu());
  const DeviceArray<float> three(stream, {3}), four(stream, {4});
  const Scaling scaling(stream, 1, 1, {}, 0);
  const DeviceStepValues values(stream, {});
  test::expect_error<ShapeError>(
      [&] { kernels::sgd_update(stream, {0.9f}, values.get(), scaling.get(), three, three, {}); },
      {"sgd_update: momentum must be f32 [3]"});
  test::expect_error<ShapeError>(
      [&] { kernels::sgd_update(stream, {}, values.get(), scaling.get(), three, three, {}, three); },
      {"sgd_update: weights rounded to bf16 are for CUDA devices"});
  test::expect_error<ShapeError>(
      [&] { kernels::adamw_update(stream, {}, values.get(), scaling.get(), three, three, three, four); },
      {"adamw_update: second_moment must be f32 [3]", "f32 [4]"});
}

}  // namespace
}  // namespace annulus
