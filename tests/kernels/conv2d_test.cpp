#include "kernels/conv2d.h"

#include <gtest/gtest.h>

#include "tests/support/allocation_counter.h"
#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/expect_error.h"
#include "tests/support/finite_difference.h"
#include "tests/support/random_values.h"
#include "tests/support/reference.h"

namespace annulus {
namespace {

using kernels::Conv2d;
using kernels::Conv2dShape;
using test::DeviceArray;
using test::to_double;

std::string name_of(const Conv2dShape& s) {
  return fmt::format("{} * {} stride {} padding {}{}{}", s.input().to_string(), s.weights().to_string(),
                     s.stride, s.padding, s.bias ? " bias" : "", s.relu ? " relu" : "");
}

// Every call of a plan, on one device.
struct Results {
  std::vector<float> y, dx, dweights, dbias;
};

struct Inputs {
  std::vector<float> x, weights, bias, dy;
};

Inputs integer_inputs(const Conv2dShape& s) {
  return {test::integers(s.input().elements(), 4, 1), test::integers(s.weights().elements(), 3, 2),
          test::integers(s.out_channels, 9, 3), test::integers(s.output().elements(), 2, 4)};
}

Results run(Device device, const Conv2dShape& s, const Inputs& in) {
  const Stream stream(device);
  const auto plan = kernels::make_conv2d(device, s);
  const Shape channels{s.out_channels};
  const DeviceArray<float> x(stream, s.input(), in.x), weights(stream, s.weights(), in.weights);
  const DeviceArray<float> bias(stream, channels, in.bias), dy(stream, s.output(), in.dy);
  const DeviceArray<float> y(stream, s.output()), dx(stream, s.input()), dweights(stream, s.weights());
  const DeviceArray<float> dbias(stream, channels);
  plan->forward(stream, x, weights, s.bias ? bias.tensor() : Tensor(), y);
  plan->backward_data(stream, dy, weights, {}, dx);
  plan->backward_weights(stream, x, dy, dweights, s.bias ? dbias.tensor() : Tensor());
  return {y.values(), dx.values(), dweights.values(), s.bias ? dbias.values() : std::vector<float>()};
}

// All values are small integers, so that every sum is exact in any order.
void check_exactly(const Conv2dShape& s) {
  const Inputs in = integer_inputs(s);
  const auto x = to_double(in.x), weights = to_double(in.weights), dy = to_double(in.dy);
  const auto y = test::reference::conv2d_forward(s, x, weights, to_double(in.bias));
  const auto dx = test::reference::conv2d_backward_data(s, dy, weights);
  const auto [dweights, dbias] = test::reference::conv2d_backward_weights(s, x, dy);
  for (const Device device : test::test_devices()) {
    SCOPED_TRACE(name_of(s) + " on " + device.to_string());
    const Results result = run(device, s, in);
    test::expect_equal("y", result.y, y);
    test::expect_equal("dx", result.dx, dx);
    test::expect_equal("dweights", result.dweights, dweights);
    if (s.bias) test::expect_equal("dbias", result.dbias, dbias);
  }
}

TEST(Conv2d, equals_the_reference_for_every_kernel_stride_and_padding) {
  for (const std::size_t in_channels : {1, 3})
    for (const std::size_t kernel : {1, 3, 5})
      for (const std::size_t stride : {1, 2, 3})
        for (const std::size_t padding : {0, 1, 2})
          check_exactly({.batch = 2,
                         .in_height = 7,
                         .in_width = 8,
                         .in_channels = in_channels,
                         .out_channels = 5,
                         .kernel_height = kernel,
                         .kernel_width = kernel,
                         .stride = stride,
                         .padding = padding});
}

TEST(Conv2d, equals_the_reference_for_every_count_of_channels) {
  for (const std::size_t in_channels : {1, 2, 8, 13, 16, 33})
    for (const std::size_t out_channels : {1, 3, 16, 20, 48})
      check_exactly({.batch = 3,
                     .in_height = 6,
                     .in_width = 5,
                     .in_channels = in_channels,
                     .out_channels = out_channels,
                     .kernel_height = 3,
                     .kernel_width = 3,
                     .padding = 1});
}

TEST(Conv2d, takes_oblong_kernels_and_images_and_any_batch) {
  for (const std::size_t batch : {1, 2, 7, 16})
    for (const std::size_t in_channels : {1, 4})
      for (const bool bias : {false, true})
        for (const bool relu : {false, true})
          check_exactly({.batch = batch,
                         .in_height = 5,
                         .in_width = 11,
                         .in_channels = in_channels,
                         .out_channels = 17,
                         .kernel_height = 2,
                         .kernel_width = 5,
                         .stride = 2,
                         .padding = 2,
                         .bias = bias,
                         .relu = relu});
  // One pixel; a kernel that is all padding but for one pixel.
  check_exactly({.batch = 1, .in_height = 1, .in_width = 1, .in_channels = 1, .out_channels = 1});
  check_exactly({.batch = 2,
                 .in_height = 1,
                 .in_width = 1,
                 .in_channels = 1,
                 .out_channels = 3,
                 .kernel_height = 5,
                 .kernel_width = 5,
                 .padding = 2});
}

// Outputs that are larger than a second-level cache, with a ReLU that goes over them again.
TEST(Conv2d, equals_the_reference_for_batches_beyond_the_cache) {
  for (const std::size_t batch : {5, 8})
    for (const std::size_t out_channels : {48, 96})
      check_exactly({.batch = batch,
                     .in_height = 28,
                     .in_width = 28,
                     .in_channels = 1,
                     .out_channels = out_channels,
                     .kernel_height = 3,
                     .kernel_width = 3,
                     .padding = 1,
                     .relu = true});
}

TEST(Conv2d, leaves_zeros_for_an_empty_batch) {
  const Conv2dShape s{.batch = 0, .in_height = 4, .in_width = 4, .in_channels = 2, .out_channels = 3};
  for (const Device device : test::test_devices()) {
    const Results result = run(device, s, integer_inputs(s));
    test::expect_equal("dweights", result.dweights, std::vector<float>(6, 0.0f));
    test::expect_equal("dbias", result.dbias, std::vector<float>(3, 0.0f));
  }
}

// Sums of n products of values in [-1, 1): the error of any order of summation is below n epsilon, and in
// practice far below; half of that tells a wrong term from rounding.
TEST(Conv2d, stays_near_the_reference_for_real_values) {
  for (const std::size_t in_channels : {1, 32}) {
    const Conv2dShape s{.batch = 4,
                        .in_height = 14,
                        .in_width = 14,
                        .in_channels = in_channels,
                        .out_channels = 24,
                        .kernel_height = 3,
                        .kernel_width = 3,
                        .padding = 1};
    const Inputs in{test::uniform(s.input().elements(), -1, 1, 1),
                    test::uniform(s.weights().elements(), -1, 1, 2), test::uniform(s.out_channels, -1, 1, 3),
                    test::uniform(s.output().elements(), -1, 1, 4)};
    const auto x = to_double(in.x), weights = to_double(in.weights), dy = to_double(in.dy);
    const auto [dweights, dbias] = test::reference::conv2d_backward_weights(s, x, dy);
    for (const Device device : test::test_devices()) {
      SCOPED_TRACE(device.to_string());
      const Results result = run(device, s, in);
      test::expect_close("y", result.y, test::reference::conv2d_forward(s, x, weights, to_double(in.bias)),
                         {4, 2e-5});
      test::expect_close("dx", result.dx, test::reference::conv2d_backward_data(s, dy, weights), {4, 2e-5});
      test::expect_close("dweights", result.dweights, dweights, {4, 5e-5});
      test::expect_close("dbias", result.dbias, dbias, {4, 5e-5});
      // The same call gives the same bits.
      const Results again = run(device, s, in);
      EXPECT_EQ(result.y, again.y);
      EXPECT_EQ(result.dx, again.dx);
      EXPECT_EQ(result.dweights, again.dweights);
      EXPECT_EQ(result.dbias, again.dbias);
    }
  }
}

TEST(Conv2d, gradients_equal_finite_differences) {
  const Conv2dShape s{.batch = 2,
                      .in_height = 5,
                      .in_width = 4,
                      .in_channels = 2,
                      .out_channels = 3,
                      .kernel_height = 3,
                      .kernel_width = 2,
                      .stride = 2,
                      .padding = 1};
  const Inputs in{test::uniform(s.input().elements(), -1, 1, 1),
                  test::uniform(s.weights().elements(), -1, 1, 2), test::uniform(s.out_channels, -1, 1, 3),
                  test::uniform(s.output().elements(), -1, 1, 4)};
  auto x = to_double(in.x), weights = to_double(in.weights), bias = to_double(in.bias);
  const auto loss = [&] {
    return test::reference::dot(test::reference::conv2d_forward(s, x, weights, bias), to_double(in.dy));
  };
  for (const Device device : test::test_devices()) {
    SCOPED_TRACE(device.to_string());
    const Results result = run(device, s, in);
    const test::Tolerance tolerance{4, 1e-5};
    test::expect_close("dx", result.dx, test::central_differences(loss, x), tolerance);
    test::expect_close("dweights", result.dweights, test::central_differences(loss, weights), tolerance);
    test::expect_close("dbias", result.dbias, test::central_differences(loss, bias), tolerance);
  }
}

TEST(Conv2d, passes_nan_and_infinity_through_the_relu) {
  const Conv2dShape s{.batch = 1,
                      .in_height = 1,
                      .in_width = 4,
                      .in_channels = 1,
                      .out_channels = 1,
                      .bias = false,
                      .relu = true};
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  for (const Device device : test::test_devices()) {
    const Stream stream(device);
    const DeviceArray<float> x(stream, s.input(), {nan, infinity, -infinity, -2}), y(stream, s.output());
    const DeviceArray<float> weights(stream, s.weights(), {3.0f});
    kernels::make_conv2d(device, s)->forward(stream, x, weights, {}, y);
    test::expect_equal("y", y.values(), std::vector<float>{nan, infinity, 0, 0});
  }
}

TEST(Conv2d, masks_the_data_gradient_where_the_relu_before_gave_nothing) {
  const Conv2dShape s{.batch = 1, .in_height = 1, .in_width = 4, .in_channels = 1, .out_channels = 1};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Device device : test::test_devices()) {
    const Stream stream(device);
    const DeviceArray<float> dy(stream, s.output(), {2, 3, 4, 5}), weights(stream, s.weights(), {7.0f});
    const DeviceArray<float> relu_output(stream, s.input(), {0, 0.5f, nan, 4}), dx(stream, s.input());
    kernels::make_conv2d(device, s)->backward_data(stream, dy, weights, relu_output, dx);
    test::expect_equal("dx", dx.values(), std::vector<float>{0, 21, 0, 35});
  }
}

TEST(Conv2d, allocates_nothing_once_planned) {
  if (!test::kCountsAllocations) GTEST_SKIP() << "the sanitizer has its own allocator";
  for (const std::size_t in_channels : {1, 32}) {
    const Conv2dShape s{.batch = 16,
                        .in_height = 14,
                        .in_width = 14,
                        .in_channels = in_channels,
                        .out_channels = 64,
                        .kernel_height = 3,
                        .kernel_width = 3,
                        .padding = 1,
                        .relu = true};
    const Stream stream(Device::cpu());
    const auto plan = kernels::make_conv2d(Device::cpu(), s);
    const DeviceArray<float> x(stream, s.input()), weights(stream, s.weights()), bias(stream, {64});
    const DeviceArray<float> y(stream, s.output());
    const auto call_all = [&] {
      plan->forward(stream, x, weights, bias, y);
      plan->backward_data(stream, y, weights, {}, x);
      plan->backward_weights(stream, x, y, weights, bias);
    };
    call_all();  // the OpenMP runtime sets itself up in its first call
    const std::size_t before = test::allocation_count;
    call_all();
    EXPECT_EQ(test::allocation_count - before, 0u);
  }
}

TEST(Conv2d, refuses_what_does_not_fit) {
  const auto plan = [](const Conv2dShape& s) { return kernels::make_conv2d(Device::cpu(), s); };
  test::expect_error<ShapeError>(
      [&] { plan({.batch = 1, .in_height = 2, .in_width = 2, .in_channels = 0, .out_channels = 1}); },
      {"conv2d", "must not be empty", "2 x 2 x 0"});
  test::expect_error<ShapeError>(
      [&] { plan({.in_height = 2, .in_width = 2, .in_channels = 1, .out_channels = 1, .stride = 0}); },
      {"stride must be at least 1"});
  test::expect_error<ShapeError>(
      [&] {
        plan({.in_height = 2,
              .in_width = 2,
              .in_channels = 1,
              .out_channels = 1,
              .kernel_height = 5,
              .kernel_width = 5,
              .padding = 1});
      },
      {"5 x 5 does not fit into 2 x 2 padded by 1"});
  Conv2dShape s{.batch = 1, .in_height = 2, .in_width = 2, .in_channels = 1, .out_channels = 3};
  s.precision = Precision::tf32;
  test::expect_error<ConfigError>([&] { plan(s); }, {"conv2d: the precision tf32 needs a CUDA device"});
  s.precision = Precision::f32;
  const Stream stream(Device::cpu());
  const DeviceArray<float> x(stream, s.input()), weights(stream, s.weights()), bias(stream, {2});
  const DeviceArray<float> y(stream, s.output());
  test::expect_error<ShapeError>([&] { plan(s)->forward(stream, x, weights, bias, y); },
                                 {"conv2d forward", "bias must be f32 [3] on cpu", "but is f32 [2] on cpu"});
  test::expect_error<ShapeError>([&] { plan(s)->forward(stream, x, weights, {}, y); }, {"bias"});
}

}  // namespace
}  // namespace annulus
