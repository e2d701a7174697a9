#include "kernels/conv2d.h"

#include <gtest/gtest.h>

#include "tests/support/allocation_counter.h"
#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/expect_error.h"
#include "tests/support/finite_difference.h"
#include "tests/support/precisions.h"
#include "tests/support/random_values.h"
#include "tests/support/reference.h"
#if ANNULUS_TESTS_ON_VIRTUAL_GPU
#include "tests/support/huge_array.h"
#endif

namespace annulus {
namespace {

using kernels::Conv2d;
using kernels::Conv2dShape;
using test::DeviceArray;
using test::RealArray;
using test::to_double;

std::string name_of(const Conv2dShape& s) {
  return fmt::format("{} * {} stride {} padding {}{}{} in {}", s.input().to_string(), s.weights().to_string(),
                     s.stride, s.padding, s.bias ? " bias" : "", s.relu ? " relu" : "",
                     annulus::name_of(s.precision));
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

Inputs real_inputs(const Conv2dShape& s, float low, float high) {
  return {test::uniform(s.input().elements(), low, high, 1),
          test::uniform(s.weights().elements(), low, high, 2), test::uniform(s.out_channels, low, high, 3),
          test::uniform(s.output().elements(), low, high, 4)};
}

// With `skip` the tensors start so many elements past an aligned address.
Results run(Device device, const Conv2dShape& s, const Inputs& in, std::size_t skip = 0) {
  const Stream stream(device);
  const auto plan = kernels::make_conv2d(device, s);
  const Shape channels{s.out_channels};
  const DType dtype = activation_dtype(s.precision);
  const RealArray x(stream, s.input(), dtype, in.x, skip),
      weights(stream, s.weights(), dtype, in.weights, skip);
  const RealArray bias(stream, channels, dtype, in.bias, skip), dy(stream, s.output(), dtype, in.dy, skip);
  const RealArray y(stream, s.output(), dtype, skip), dx(stream, s.input(), dtype, skip);
  const RealArray dweights(stream, s.weights(), DType::f32, skip), dbias(stream, channels, DType::f32, skip);
  plan->forward(stream, x, weights, s.bias ? bias.tensor() : Tensor(), y);
  plan->backward_data(stream, dy, weights, {}, dx);
  plan->backward_weights(stream, x, dy, dweights, s.bias ? dbias.tensor() : Tensor());
  return {y.values(), dx.values(), dweights.values(), s.bias ? dbias.values() : std::vector<float>()};
}

// All values are small integers, so that every sum is exact in any order.
void check_exactly(Conv2dShape s, std::size_t skip = 0,
                   std::initializer_list<Precision> precisions = {Precision::f32, Precision::tf32,
                                                                  Precision::bf16}) {
  const Inputs in = integer_inputs(s);
  const auto x = to_double(in.x), weights = to_double(in.weights), dy = to_double(in.dy);
  const auto y = test::reference::conv2d_forward(s, x, weights, to_double(in.bias));
  const auto dx = test::reference::conv2d_backward_data(s, dy, weights);
  const auto [dweights, dbias] = test::reference::conv2d_backward_weights(s, x, dy);
  for (const Precision precision : precisions)
    for (const Device device : test::test_devices(precision)) {
      s.precision = precision;
      SCOPED_TRACE(name_of(s) + " on " + device.to_string());
      const Results result = run(device, s, in, skip);
      test::expect_equal("y", result.y, test::as_stored(precision, y));
      test::expect_equal("dx", result.dx, test::as_stored(precision, dx));
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
  for (const std::size_t out_channels : {48, 96})
    check_exactly({.batch = 8,
                   .in_height = 28,
                   .in_width = 28,
                   .in_channels = 1,
                   .out_channels = out_channels,
                   .kernel_height = 3,
                   .kernel_width = 3,
                   .padding = 1,
                   .relu = true},
                  0, {Precision::f32});
}

TEST(Conv2d, splits_long_sums) {
  check_exactly({.batch = 1,
                 .in_height = 9,
                 .in_width = 9,
                 .in_channels = 64,
                 .out_channels = 40,
                 .kernel_height = 3,
                 .kernel_width = 3,
                 .stride = 2,
                 .padding = 1});
  check_exactly({.batch = 3, .in_height = 16, .in_width = 15, .in_channels = 8, .out_channels = 72});
}

// One pixel or tap less and more than a tile has.
TEST(Conv2d, equals_the_reference_at_the_edges_of_tiles) {
  for (const std::size_t width : {127, 128, 129})
    check_exactly({.batch = 1, .in_height = 1, .in_width = width, .in_channels = 8, .out_channels = 16});
  for (const std::size_t channels : {31, 32, 33, 40, 63, 64, 65})
    check_exactly(
        {.batch = 1, .in_height = 3, .in_width = 3, .in_channels = channels, .out_channels = channels});
}

TEST(Conv2d, takes_tensors_at_any_address) {
  for (const std::size_t skip : {1, 2, 3, 4, 5, 8})
    check_exactly({.batch = 2,
                   .in_height = 5,
                   .in_width = 4,
                   .in_channels = 16,
                   .out_channels = 24,
                   .kernel_height = 3,
                   .kernel_width = 3,
                   .padding = 1},
                  skip);
}

TEST(Conv2d, leaves_zeros_for_an_empty_batch) {
  Conv2dShape s{.batch = 0, .in_height = 4, .in_width = 4, .in_channels = 2, .out_channels = 3};
  for (const Precision precision : test::kPrecisions)
    for (const Device device : test::test_devices(precision)) {
      s.precision = precision;
      const Results result = run(device, s, integer_inputs(s));
      test::expect_equal("dweights", result.dweights, std::vector<float>(6, 0.0f));
      test::expect_equal("dbias", result.dbias, std::vector<float>(3, 0.0f));
    }
}

// Sums with an absolute error of up to `slack`, and the same bits at every call.
void check_closely(Conv2dShape s, const Inputs& in, double slack) {
  for (const Precision precision : test::kPrecisions) {
    if (test::test_devices(precision).empty()) continue;
    s.precision = precision;
    const DType dtype = activation_dtype(precision);
    const auto x = test::as_operand(precision, in.x), weights = test::as_operand(precision, in.weights);
    const auto dy = test::as_operand(precision, in.dy);
    const auto bias = to_double(test::rounded_to(dtype, in.bias));
    const auto stored_dy = to_double(test::rounded_to(dtype, in.dy));
    const auto dweights = test::reference::conv2d_backward_weights(s, x, dy).first;
    const auto dbias = test::reference::conv2d_backward_weights(s, x, stored_dy).second;
    for (const Device device : test::test_devices(precision)) {
      SCOPED_TRACE(name_of(s) + " on " + device.to_string());
      const Results result = run(device, s, in);
      const test::Tolerance tolerance = test::tolerance_of(precision, slack);
      test::expect_close("y", result.y, test::reference::conv2d_forward(s, x, weights, bias), tolerance);
      test::expect_close("dx", result.dx, test::reference::conv2d_backward_data(s, dy, weights), tolerance);
      test::expect_close("dweights", result.dweights, dweights, {4, slack});
      test::expect_close("dbias", result.dbias, dbias, {4, slack});
      const Results again = run(device, s, in);
      EXPECT_EQ(result.y, again.y);
      EXPECT_EQ(result.dx, again.dx);
      EXPECT_EQ(result.dweights, again.dweights);
      EXPECT_EQ(result.dbias, again.dbias);
    }
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
    check_closely(s, real_inputs(s, -1, 1), 5e-5);
  }
}

// Terms of one sign: an operand that is cut off instead of rounded moves every sum the same way.
TEST(Conv2d, rounds_operands_to_the_nearest) {
  const Conv2dShape s{.batch = 2,
                      .in_height = 5,
                      .in_width = 5,
                      .in_channels = 24,
                      .out_channels = 16,
                      .kernel_height = 3,
                      .kernel_width = 3};
  check_closely(s, real_inputs(s, 1, 2), 1e-3);
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
  const Inputs in = real_inputs(s, -1, 1);
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
  Conv2dShape s{.batch = 1,
                .in_height = 1,
                .in_width = 4,
                .in_channels = 1,
                .out_channels = 1,
                .bias = false,
                .relu = true};
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  for (const Precision precision : test::kPrecisions)
    for (const Device device : test::test_devices(precision)) {
      s.precision = precision;
      const Results result = run(device, s, {{nan, infinity, -infinity, -2}, {3}, {0}, {0, 0, 0, 0}});
      test::expect_equal("y", result.y, std::vector<float>{nan, infinity, 0, 0});
    }
}

// In rows that are moved as packs and in others.
TEST(Conv2d, masks_the_data_gradient_where_the_relu_before_gave_nothing) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Precision precision : test::kPrecisions)
    for (const Device device : test::test_devices(precision))
      for (const std::size_t channels : {3, 8}) {
        const Conv2dShape s{.batch = 1,
                            .in_height = 2,
                            .in_width = 2,
                            .in_channels = channels,
                            .out_channels = channels,
                            .precision = precision};
        const Inputs in = integer_inputs(s);
        std::vector<float> relu_output(s.input().elements(), 0.5f);
        relu_output[1] = 0, relu_output[3] = nan, relu_output[channels + 2] = -1;
        auto expected = test::reference::conv2d_backward_data(s, to_double(in.dy), to_double(in.weights));
        for (std::size_t i = 0; i < expected.size(); ++i)
          if (!(relu_output[i] > 0)) expected[i] = 0;
        const DType dtype = activation_dtype(precision);
        const Stream stream(device);
        const RealArray dy(stream, s.output(), dtype, in.dy), weights(stream, s.weights(), dtype, in.weights);
        const RealArray mask(stream, s.input(), dtype, relu_output), dx(stream, s.input(), dtype);
        kernels::make_conv2d(device, s)->backward_data(stream, dy, weights, mask, dx);
        test::expect_equal("dx", dx.values(), expected);
      }
}

#if ANNULUS_TESTS_ON_VIRTUAL_GPU
// The last pixels of images, and the last channels of weight gradients, of more than 2^31 elements.
TEST(Conv2d, reaches_elements_beyond_2_31) {
  const Stream stream(Device::cuda(0));
  const test::OnlyTheLastBlock only;
  for (const Precision precision : {Precision::f32, Precision::tf32}) {
    // One image is one tile of pixels or a little less.
    Conv2dShape s{.batch = 1,
                  .in_height = 1,
                  .in_width = 128,
                  .in_channels = 8,
                  .out_channels = 8,
                  .kernel_width = 3,
                  .bias = false,
                  .precision = precision};
    const std::vector<float> x_values = test::integers(s.input().elements(), 4, 1);
    const std::vector<float> dy_values = test::integers(s.output().elements(), 4, 2);
    const std::vector<float> kernel = test::integers(s.weights().elements(), 3, 3);
    const auto y_expected = test::reference::conv2d_forward(s, to_double(x_values), to_double(kernel), {});
    const auto dx_expected =
        test::reference::conv2d_backward_data(s, to_double(dy_values), to_double(kernel));
    s.batch = (std::size_t{1} << 22) + 1;
    const auto plan = kernels::make_conv2d(stream.device(), s);
    test::HugeArray x(stream, s.input()), y(stream, s.output()), weights(stream, s.weights());
    const std::size_t last_x = (s.batch - 1) * x_values.size(), last_y = (s.batch - 1) * dy_values.size();
    weights.set(0, kernel);
    x.set(last_x, x_values);
    plan->forward(stream, x, weights, {}, y);
    test::expect_equal("y", y.get(last_y, dy_values.size()), y_expected);
    test::HugeArray dx(stream, s.input()), dy(stream, s.output());
    dy.set(last_y, dy_values);
    plan->backward_data(stream, dy, weights, {}, dx);
    test::expect_equal("dx", dx.get(last_x, x_values.size()), dx_expected);
  }
  for (const Precision precision : {Precision::f32, Precision::tf32}) {
    const Conv2dShape s{.batch = 40,
                        .in_height = 1,
                        .in_width = 1,
                        .in_channels = (std::size_t{1} << 26) + 8,
                        .out_channels = 36,
                        .bias = false,
                        .precision = precision};
    test::HugeArray x(stream, s.input()), dy(stream, s.output()), dweights(stream, s.weights());
    dy.set(0, std::vector<float>(s.output().elements(), 1.0f));
    std::vector<float> sums(8);
    for (std::size_t b = 0; b < s.batch; ++b) {
      const std::vector<float> values = test::integers(8, 4, b);
      x.set((b + 1) * s.in_channels - 8, values);
      for (std::size_t i = 0; i < 8; ++i) sums[i] += values[i];
    }
    kernels::make_conv2d(stream.device(), s)->backward_weights(stream, x, dy, dweights, {});
    test::expect_equal("dweights", dweights.get(s.weights().elements() - 8, 8), sums);
  }
}
#endif

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

TEST(Conv2d, refuses_more_than_cuda_kernels_can_count) {
  for (const Device device : test::test_devices()) {
    if (!device.is_cuda()) continue;
    Conv2dShape s{
        .batch = 1 << 15, .in_height = 1 << 8, .in_width = 1 << 8, .in_channels = 1, .out_channels = 1};
    test::expect_error<ShapeError>([&] { kernels::make_conv2d(device, s); },
                                   {"2147483648 pixels", "at most 2147483647", "smaller micro-batch"});
    s.batch = 1;
    s.in_width = std::size_t{1} << 32;
    test::expect_error<ShapeError>([&] { kernels::make_conv2d(device, s); }, {"1099511627776 pixels"});
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
