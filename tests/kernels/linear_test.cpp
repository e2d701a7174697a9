#include "kernels/linear.h"

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

using kernels::LinearShape;
using test::DeviceArray;
using test::to_double;

struct Inputs {
  std::vector<float> x, weights, bias, dy;
};

struct Results {
  std::vector<float> y, dx, dweights, dbias;
};

Shape x_shape(const LinearShape& s) { return {s.batch, s.in_features}; }
Shape y_shape(const LinearShape& s) { return {s.batch, s.out_features}; }
Shape weights_shape(const LinearShape& s) { return {s.out_features, s.in_features}; }

Results run(Device device, const LinearShape& s, const Inputs& in) {
  const Stream stream(device);
  const auto plan = kernels::make_linear(device, s);
  const Shape features{s.out_features};
  const DeviceArray<float> x(stream, x_shape(s), in.x), weights(stream, weights_shape(s), in.weights);
  const DeviceArray<float> bias(stream, features, in.bias), dy(stream, y_shape(s), in.dy);
  const DeviceArray<float> y(stream, y_shape(s)), dx(stream, x_shape(s)), dweights(stream, weights_shape(s));
  const DeviceArray<float> dbias(stream, features);
  plan->forward(stream, x, weights, s.bias ? bias.tensor() : Tensor(), y);
  plan->backward_data(stream, dy, weights, {}, dx);
  plan->backward_weights(stream, x, dy, dweights, s.bias ? dbias.tensor() : Tensor());
  return {y.values(), dx.values(), dweights.values(), s.bias ? dbias.values() : std::vector<float>()};
}

void check(const LinearShape& s, const Inputs& in, test::Tolerance tolerance) {
  const auto as_conv2d = test::reference::as_conv2d(s);
  const auto x = to_double(in.x), weights = to_double(in.weights), dy = to_double(in.dy);
  const auto [dweights, dbias] = test::reference::conv2d_backward_weights(as_conv2d, x, dy);
  for (const Device device : test::test_devices()) {
    SCOPED_TRACE(fmt::format("batch {}, {} -> {}, bias {}, relu {} on {}", s.batch, s.in_features,
                             s.out_features, s.bias, s.relu, device.to_string()));
    const Results result = run(device, s, in);
    test::expect_close("y", result.y,
                       test::reference::conv2d_forward(as_conv2d, x, weights, to_double(in.bias)), tolerance);
    test::expect_close("dx", result.dx, test::reference::conv2d_backward_data(as_conv2d, dy, weights),
                       tolerance);
    test::expect_close("dweights", result.dweights, dweights, tolerance);
    if (s.bias) test::expect_close("dbias", result.dbias, dbias, tolerance);
    const Results again = run(device, s, in);
    EXPECT_EQ(result.y, again.y) << "the same call must give the same bits";
    EXPECT_EQ(result.dx, again.dx);
    EXPECT_EQ(result.dweights, again.dweights);
    EXPECT_EQ(result.dbias, again.dbias);
  }
}

// Small integers: every sum is exact in any order.
void check_exactly(const LinearShape& s) {
  check(s,
        {test::integers(x_shape(s).elements(), 4, 1), test::integers(weights_shape(s).elements(), 3, 2),
         test::integers(s.out_features, 9, 3), test::integers(y_shape(s).elements(), 2, 4)},
        test::kExact);
}

TEST(Linear, equals_the_reference_for_every_size) {
  for (const std::size_t batch : {1, 2, 7, 64, 67, 130})
    for (const std::size_t in : {1, 3, 16, 37, 128})
      for (const std::size_t out : {1, 10, 16, 65}) check_exactly({batch, in, out});
}

TEST(Linear, takes_bias_and_relu_or_not) {
  for (const bool bias : {false, true})
    for (const bool relu : {false, true}) check_exactly({5, 33, 17, bias, relu});
}

TEST(Linear, equals_the_reference_in_the_shapes_of_the_models) {
  for (const std::size_t batch : {64, 37}) {
    check_exactly({batch, 784, 512, true, true});
    check_exactly({batch, 256, 10});
    check_exactly({batch, 3136, 128, true, true});
  }
}

// Sums of n terms of order 1 with n up to 500.
TEST(Linear, stays_near_the_reference_for_real_values) {
  const LinearShape s{100, 500, 70};
  check(s,
        {test::uniform(x_shape(s).elements(), -1, 1, 1), test::uniform(weights_shape(s).elements(), -1, 1, 2),
         test::uniform(s.out_features, -1, 1, 3), test::uniform(y_shape(s).elements(), -1, 1, 4)},
        {4, 5e-5});
}

TEST(Linear, gradients_equal_finite_differences) {
  const LinearShape s{3, 5, 4};
  const Inputs in{test::uniform(15, -1, 1, 1), test::uniform(20, -1, 1, 2), test::uniform(4, -1, 1, 3),
                  test::uniform(12, -1, 1, 4)};
  auto x = to_double(in.x), weights = to_double(in.weights), bias = to_double(in.bias);
  const auto loss = [&] {
    return test::reference::dot(
        test::reference::conv2d_forward(test::reference::as_conv2d(s), x, weights, bias), to_double(in.dy));
  };
  for (const Device device : test::test_devices()) {
    SCOPED_TRACE(device.to_string());
    const Results result = run(device, s, in);
    const test::Tolerance tolerance{4, 1e-6};
    test::expect_close("dx", result.dx, test::central_differences(loss, x), tolerance);
    test::expect_close("dweights", result.dweights, test::central_differences(loss, weights), tolerance);
    test::expect_close("dbias", result.dbias, test::central_differences(loss, bias), tolerance);
  }
}

TEST(Linear, leaves_zeros_for_an_empty_batch) {
  const LinearShape s{0, 3, 2};
  for (const Device device : test::test_devices()) {
    const Results result = run(device, s, {{}, test::integers(6, 3, 1), {1, 2}, {}});
    test::expect_equal("dweights", result.dweights, std::vector<float>(6, 0.0f));
    test::expect_equal("dbias", result.dbias, std::vector<float>(2, 0.0f));
  }
}

TEST(Linear, passes_nan_and_infinity_through_the_relu) {
  const LinearShape s{4, 1, 1, true, true};
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  for (const Device device : test::test_devices()) {
    const Results result = run(device, s, {{nan, infinity, -infinity, -2}, {3}, {1}, {0, 0, 0, 0}});
    test::expect_equal("y", result.y, std::vector<float>{nan, infinity, 0, 0});
  }
}

TEST(Linear, masks_the_data_gradient_where_the_relu_before_gave_nothing) {
  const LinearShape s{2, 2, 1, false};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Device device : test::test_devices()) {
    const Stream stream(device);
    const DeviceArray<float> dy(stream, y_shape(s), {2, 3}), weights(stream, weights_shape(s), {5, 7});
    const DeviceArray<float> relu_output(stream, x_shape(s), {0, 0.5f, nan, 4}), dx(stream, x_shape(s));
    kernels::make_linear(device, s)->backward_data(stream, dy, weights, relu_output, dx);
    test::expect_equal("dx", dx.values(), std::vector<float>{0, 14, 0, 21});
  }
}

TEST(Linear, allocates_nothing_once_planned) {
  if (!test::kCountsAllocations) GTEST_SKIP() << "the sanitizer has its own allocator";
  for (const LinearShape s : {LinearShape{256, 784, 512, true, true}, LinearShape{64, 128, 10}}) {
    const Stream stream(Device::cpu());
    const auto plan = kernels::make_linear(Device::cpu(), s);
    const DeviceArray<float> x(stream, x_shape(s)), weights(stream, weights_shape(s)), y(stream, y_shape(s));
    const DeviceArray<float> bias(stream, {s.out_features});
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

TEST(Linear, refuses_what_does_not_fit) {
  test::expect_error<ShapeError>(
      [] {
        kernels::make_linear(Device::cpu(), {1, 0, 3});
      },
      {"linear: features must not be empty, but are 0 to 3"});
  test::expect_error<ConfigError>(
      [] {
        kernels::make_linear(Device::cpu(),
                             {.in_features = 1, .out_features = 1, .precision = Precision::bf16});
      },
      {"linear: the precision bf16 needs a CUDA device"});
  const LinearShape s{2, 3, 4};
  const Stream stream(Device::cpu());
  const DeviceArray<float> x(stream, {2, 3}), weights(stream, {3, 4}), bias(stream, {4}), y(stream, {2, 4});
  test::expect_error<ShapeError>(
      [&] { kernels::make_linear(Device::cpu(), s)->forward(stream, x, weights, bias, y); },
      {"weights must be f32 [4, 3] on cpu", "but is f32 [3, 4]"});
}

}  // namespace
}  // namespace annulus
