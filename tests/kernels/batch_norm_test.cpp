#include "kernels/batch_norm.h"

#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/expect_error.h"
#include "tests/support/finite_difference.h"
#include "tests/support/random_values.h"
#include "tests/support/reference.h"
#include "tests/support/storages.h"

namespace annulus {
namespace {

using test::DeviceArray;
using test::RealArray;
using test::Storage;
using test::to_double;
using test::reference::Doubles;

constexpr float kEpsilon = 1e-5f;

struct Inputs {
  std::size_t rows, channels;
  std::vector<float> x, scale, shift, dy;

  Inputs(std::size_t row_count, std::size_t channel_count, float low, float high)
      : rows(row_count),
        channels(channel_count),
        x(test::uniform(rows * channels, low, high, 1)),
        scale(test::uniform(channels, 0.5f, 2, 2)),
        shift(test::uniform(channels, -1, 1, 3)),
        dy(test::uniform(rows * channels, -1, 1, 4)) {}

  /// As activations of `dtype` hold them.
  Inputs stored_as(DType dtype) const {
    Inputs stored = *this;
    stored.x = test::rounded_to(dtype, x);
    stored.dy = test::rounded_to(dtype, dy);
    return stored;
  }

  Doubles forward(const Doubles& values, const Doubles& scales, const Doubles& shifts) const {
    const auto m = test::reference::moments(rows, channels, values);
    return test::reference::batch_norm(channels, values, m.mean, m.variance, static_cast<double>(kEpsilon),
                                       scales, shifts);
  }
};

struct Results {
  std::vector<float> y, mean, inverse_std, unbiased_variance, dx, dscale, dshift;
};

Results run(const Storage& storage, const Inputs& in, bool in_place) {
  const auto& [device, dtype, skip] = storage;
  const Stream stream(device);
  const Shape all{in.rows, in.channels}, each{in.channels};
  const Buffer memory(device, kernels::batch_norm_workspace_bytes(device, in.rows, in.channels));
  void* const workspace = memory.data();
  const RealArray x(stream, all, dtype, in.x, skip), x_again(stream, all, dtype, in.x, skip),
      dy(stream, all, dtype, in.dy, skip);
  const DeviceArray<float> scale(stream, each, in.scale), shift(stream, each, in.shift);
  const RealArray y(stream, all, dtype, skip), dx(stream, all, dtype, skip);
  const DeviceArray<float> mean(stream, each), inverse_std(stream, each);
  const DeviceArray<float> unbiased_variance(stream, each), dscale(stream, each), dshift(stream, each);
  const RealArray& y_target = in_place ? x_again : y;
  const RealArray& dx_target = in_place ? dy : dx;
  kernels::batch_norm_forward(stream, in_place ? x_again : x, scale, shift, kEpsilon, workspace, y_target,
                              mean, inverse_std, unbiased_variance);
  kernels::batch_norm_backward(stream, dy, x, scale, mean, inverse_std, workspace, dx_target, dscale, dshift);
  return {y_target.values(),  mean.values(),   inverse_std.values(), unbiased_variance.values(),
          dx_target.values(), dscale.values(), dshift.values()};
}

// dx, dscale and dshift in double, from the formulas of the paper.
struct Gradients {
  Doubles dx, dscale, dshift;
};

Gradients reference_gradients(const Inputs& in) {
  const auto m = test::reference::moments(in.rows, in.channels, to_double(in.x));
  Gradients g{Doubles(in.x.size()), Doubles(in.channels), Doubles(in.channels)};
  const auto normalised = [&](std::size_t i) {
    const std::size_t c = i % in.channels;
    return (static_cast<double>(in.x[i]) - m.mean[c]) /
           std::sqrt(m.variance[c] + static_cast<double>(kEpsilon));
  };
  for (std::size_t i = 0; i < in.x.size(); ++i) {
    g.dshift[i % in.channels] += static_cast<double>(in.dy[i]);
    g.dscale[i % in.channels] += static_cast<double>(in.dy[i]) * normalised(i);
  }
  const double n = static_cast<double>(in.rows);
  for (std::size_t i = 0; i < in.x.size(); ++i) {
    const std::size_t c = i % in.channels;
    g.dx[i] = (static_cast<double>(in.dy[i]) - g.dshift[c] / n - normalised(i) * g.dscale[c] / n) *
              static_cast<double>(in.scale[c]) / std::sqrt(m.variance[c] + static_cast<double>(kEpsilon));
  }
  return g;
}

TEST(BatchNorm, equals_the_reference_for_every_size) {
  for (const std::size_t rows : {2, 3, 16, 101, 1031})
    for (const std::size_t channels : {1, 3, 16, 63, 64, 65, 130}) {
      const Inputs exact(rows, channels, -1, 2);
      for (const Storage& storage : test::storages()) {
        const Inputs in = exact.stored_as(storage.dtype);
        const auto m = test::reference::moments(rows, channels, to_double(in.x));
        const auto y = in.forward(to_double(in.x), to_double(in.scale), to_double(in.shift));
        const Gradients g = reference_gradients(in);
        // What is stored in bf16 is rounded to its 8 bits once more: half of its epsilon.
        const double rounding = storage.dtype == DType::f32 ? 8 : 0.51;
        const double epsilon = test::epsilon_of(storage.dtype);
        for (const bool in_place : {false, true}) {
          SCOPED_TRACE(
              fmt::format("[{}, {}]{}, {}", rows, channels, in_place ? " in place" : "", storage.describe()));
          const Results result = run(storage, in, in_place);
          test::expect_close("mean", result.mean, m.mean, {1, 1e-9});
          test::expect_close("unbiased_variance", result.unbiased_variance, m.unbiased_variance, {2, 1e-9});
          // With two rows that happen to be close, 1 / std is up to 300; all else is of order 1.
          test::expect_close("y", result.y, y, {rounding, rows < 16 ? 2e-4 : 4e-6, epsilon});
          test::expect_close("dscale", result.dscale, g.dscale,
                             {8, rows < 16 ? 2e-4 : 4e-6 * std::sqrt(rows)});
          test::expect_close("dshift", result.dshift, g.dshift, {2, 1e-6});
          if (rows >= 16) test::expect_close("dx", result.dx, g.dx, {rounding, 1e-5, epsilon});
        }
      }
    }
}

TEST(BatchNorm, gradients_equal_finite_differences) {
  const Inputs in(7, 3, -1, 1);
  auto x = to_double(in.x), scale = to_double(in.scale), shift = to_double(in.shift);
  const auto loss = [&] { return test::reference::dot(in.forward(x, scale, shift), to_double(in.dy)); };
  for (const Device device : test::test_devices()) {
    SCOPED_TRACE(device.to_string());
    const Results result = run({device}, in, false);
    const test::Tolerance tolerance{8, 1e-5};
    test::expect_close("dx", result.dx, test::central_differences(loss, x), tolerance);
    test::expect_close("dscale", result.dscale, test::central_differences(loss, scale), tolerance);
    test::expect_close("dshift", result.dshift, test::central_differences(loss, shift), tolerance);
  }
}

// The variance of values around 10000 with a spread of 1: E[x^2] - E[x]^2 in f32 would lose all of it.
TEST(BatchNorm, keeps_small_variance_under_a_large_mean) {
  const Inputs in(1000, 5, 9999.5f, 10000.5f);
  const auto m = test::reference::moments(in.rows, in.channels, to_double(in.x));
  for (const Device device : test::test_devices()) {
    const Results result = run({device}, in, false);
    test::expect_close("mean", result.mean, m.mean, {1, 0});
    test::expect_close("unbiased_variance", result.unbiased_variance, m.unbiased_variance, {16, 0});
  }
}

TEST(BatchNorm, takes_one_row_and_none) {
  for (const Device device : test::test_devices()) {
    SCOPED_TRACE(device.to_string());
    const Inputs one(1, 3, -1, 1);
    const Results result = run({device}, one, false);
    test::expect_equal("mean", result.mean, one.x);
    test::expect_equal("unbiased_variance", result.unbiased_variance, std::vector<float>(3, 0.0f));
    test::expect_close("y", result.y, one.shift, {1, 1e-6});
    test::expect_close("dx", result.dx, std::vector<float>(3, 0.0f), {0, 1e-6});
    test::expect_equal("dshift", result.dshift, one.dy);

    const Results none = run({device}, Inputs(0, 3, 0, 1), false);
    const std::vector<float> zeros(3, 0.0f);
    test::expect_equal("mean of nothing", none.mean, zeros);
    test::expect_equal("variance of nothing", none.unbiased_variance, zeros);
    test::expect_equal("dscale of nothing", none.dscale, zeros);
    test::expect_equal("dshift of nothing", none.dshift, zeros);
  }
}

TEST(BatchNorm, shows_nan_in_its_channel_only) {
  Inputs in(8, 3, -1, 1);
  in.x[4] = std::numeric_limits<float>::quiet_NaN();  // channel 1
  for (const Device device : test::test_devices()) {
    const Results result = run({device}, in, false);
    for (std::size_t i = 0; i < in.x.size(); ++i) EXPECT_EQ(std::isnan(result.y[i]), i % 3 == 1) << i;
  }
}

TEST(BatchNorm, infers_with_the_moments_it_is_given) {
  for (const std::size_t rows : {0, 1, 5, 64})
    for (const std::size_t channels : {1, 17, 64}) {
      const Inputs exact(rows, channels, -2, 2);
      const auto mean = test::uniform(channels, -1, 1, 5), variance = test::uniform(channels, 0.1f, 2, 6);
      for (const auto& [device, dtype, skip] : test::storages()) {
        const Inputs in = exact.stored_as(dtype);
        const auto y = test::reference::batch_norm(channels, to_double(in.x), to_double(mean),
                                                   to_double(variance), static_cast<double>(kEpsilon),
                                                   to_double(in.scale), to_double(in.shift));
        const Stream stream(device);
        const Shape all{rows, channels}, each{channels};
        const RealArray x(stream, all, dtype, in.x, skip), y_out(stream, all, dtype, skip);
        const DeviceArray<float> scale(stream, each, in.scale), shift(stream, each, in.shift);
        kernels::batch_norm_inference(stream, x, scale, shift, DeviceArray<float>(stream, each, mean),
                                      DeviceArray<float>(stream, each, variance), kEpsilon, y_out);
        test::expect_close("y", y_out.values(), y,
                           {dtype == DType::f32 ? 4 : 0.51, 4e-6, test::epsilon_of(dtype)});
      }
    }
}

TEST(BatchNorm, refuses_shapes_that_differ) {
  const Stream stream(Device::cpu());
  const DeviceArray<float> x(stream, {4, 3}), c(stream, {3}), wrong(stream, {4});
  test::expect_error<ShapeError>(
      [&] { kernels::batch_norm_forward(stream, x, wrong, c, kEpsilon, nullptr, x, c, c, c); },
      {"batch_norm_forward: scale must be f32 [3]"});
  test::expect_error<ShapeError>(
      [&] { kernels::batch_norm_inference(stream, x, c, c, c, wrong, kEpsilon, x); },
      {"batch_norm_inference: variance"});
  test::expect_error<ShapeError>(
      [&] { kernels::batch_norm_backward(stream, c, x, c, c, c, nullptr, x, c, c); },
      {"batch_norm_backward: dy must be f32 [4, 3]"});
  const RealArray rounded(stream, {4, 3}, DType::bf16);
  test::expect_error<ShapeError>(
      [&] { kernels::batch_norm_inference(stream, rounded, c, c, c, c, kEpsilon, rounded); },
      {"batch_norm_inference: x is bf16, which needs a CUDA device"});
}

}  // namespace
}  // namespace annulus
