#include "kernels/linear.h"

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

using kernels::LinearShape;
using test::DeviceArray;
using test::to_double;

using test::RealArray;

struct Inputs {
  std::vector<float> x, weights, bias, dy;
};

struct Results {
  std::vector<float> y, dx, dweights, dbias;
};

Shape x_shape(const LinearShape& s) { return {s.batch, s.in_features}; }
Shape y_shape(const LinearShape& s) { return {s.batch, s.out_features}; }
Shape weights_shape(const LinearShape& s) { return {s.out_features, s.in_features}; }

Inputs integer_inputs(const LinearShape& s) {
  return {test::integers(x_shape(s).elements(), 4, 1), test::integers(weights_shape(s).elements(), 3, 2),
          test::integers(s.out_features, 9, 3), test::integers(y_shape(s).elements(), 2, 4)};
}

Inputs real_inputs(const LinearShape& s, float low, float high) {
  return {test::uniform(x_shape(s).elements(), low, high, 1),
          test::uniform(weights_shape(s).elements(), low, high, 2),
          test::uniform(s.out_features, low, high, 3), test::uniform(y_shape(s).elements(), low, high, 4)};
}

// A CUDA device has two implementations; `make` makes that of the running test.
enum class Implementation { tiled, cublaslt };
Implementation implementation = Implementation::tiled;

void PrintTo(Implementation value, std::ostream* out) {
  *out << (value == Implementation::tiled ? "tiled" : "cublaslt");
}

std::unique_ptr<kernels::Linear> make(Device device, const LinearShape& s) {
#if ANNULUS_HAS_CUDA
  if (device.is_cuda())
    return implementation == Implementation::tiled ? kernels::cuda::make_tiled_linear(device, s)
                                                   : kernels::cuda::make_cublaslt_linear(device, s);
#endif
  return kernels::make_linear(device, s);
}

class Linear : public ::testing::TestWithParam<Implementation> {
 protected:
  Linear() { implementation = GetParam(); }
};

#if ANNULUS_HAS_CUDA
INSTANTIATE_TEST_SUITE_P(OnCuda, Linear, ::testing::Values(Implementation::tiled, Implementation::cublaslt));
#else
INSTANTIATE_TEST_SUITE_P(OnCpu, Linear, ::testing::Values(Implementation::tiled));
#endif

// Every call of a plan. With `skip` the tensors start so many elements past an aligned address.
Results run(Device device, const LinearShape& s, const Inputs& in, std::size_t skip = 0) {
  const Stream stream(device);
  const auto plan = make(device, s);
  const Shape features{s.out_features};
  const DType dtype = activation_dtype(s.precision);
  const RealArray x(stream, x_shape(s), dtype, in.x, skip);
  const RealArray weights(stream, weights_shape(s), dtype, in.weights, skip);
  const RealArray bias(stream, features, dtype, in.bias, skip), dy(stream, y_shape(s), dtype, in.dy, skip);
  const RealArray y(stream, y_shape(s), dtype, skip), dx(stream, x_shape(s), dtype, skip);
  const RealArray dweights(stream, weights_shape(s), DType::f32, skip),
      dbias(stream, features, DType::f32, skip);
  plan->forward(stream, x, weights, s.bias ? bias.tensor() : Tensor(), y);
  plan->backward_data(stream, dy, weights, {}, dx);
  plan->backward_weights(stream, x, dy, dweights, s.bias ? dbias.tensor() : Tensor());
  return {y.values(), dx.values(), dweights.values(), s.bias ? dbias.values() : std::vector<float>()};
}

// With an absolute error of up to `slack` in every f32 sum, in every precision.
void check(LinearShape s, const Inputs& in, double slack, std::size_t skip = 0) {
  const auto as_conv2d = test::reference::as_conv2d(s);
  for (const Precision precision : test::kPrecisions) {
    if (test::test_devices(precision).empty()) continue;
    s.precision = precision;
    const DType dtype = activation_dtype(precision);
    const auto x = test::as_operand(precision, in.x), weights = test::as_operand(precision, in.weights);
    const auto dy = test::as_operand(precision, in.dy);
    const auto bias = to_double(test::rounded_to(dtype, in.bias));
    const auto stored_dy = to_double(test::rounded_to(dtype, in.dy));
    const auto y = test::reference::conv2d_forward(as_conv2d, x, weights, bias);
    const auto dx = test::reference::conv2d_backward_data(as_conv2d, dy, weights);
    const auto dweights = test::reference::conv2d_backward_weights(as_conv2d, x, dy).first;
    const auto dbias = test::reference::conv2d_backward_weights(as_conv2d, x, stored_dy).second;
    const test::Tolerance parameters = slack == 0 ? test::kExact : test::Tolerance{4, slack};
    for (const Device device : test::test_devices(precision)) {
      SCOPED_TRACE(fmt::format("batch {}, {} -> {}, bias {}, relu {} in {} on {}", s.batch, s.in_features,
                               s.out_features, s.bias, s.relu, name_of(precision), device.to_string()));
      const Results result = run(device, s, in, skip);
      if (slack == 0) {
        test::expect_equal("y", result.y, test::as_stored(precision, y));
        test::expect_equal("dx", result.dx, test::as_stored(precision, dx));
      } else {
        test::expect_close("y", result.y, y, test::tolerance_of(precision, slack));
        test::expect_close("dx", result.dx, dx, test::tolerance_of(precision, slack));
      }
      test::expect_close("dweights", result.dweights, dweights, parameters);
      if (s.bias) test::expect_close("dbias", result.dbias, dbias, parameters);
      const Results again = run(device, s, in, skip);
      EXPECT_EQ(result.y, again.y) << "the same call must give the same bits";
      EXPECT_EQ(result.dx, again.dx);
      EXPECT_EQ(result.dweights, again.dweights);
      EXPECT_EQ(result.dbias, again.dbias);
    }
  }
}

// Small integers: every sum is exact in any order.
void check_exactly(const LinearShape& s, std::size_t skip = 0) { check(s, integer_inputs(s), 0, skip); }

TEST_P(Linear, equals_the_reference_for_every_size) {
  for (const std::size_t batch : {1, 7, 64, 67})
    for (const std::size_t in : {1, 3, 16, 37, 72})
      for (const std::size_t out : {1, 10, 16, 65}) check_exactly({batch, in, out});
}

TEST_P(Linear, takes_bias_and_relu_or_not) {
  for (const bool bias : {false, true})
    for (const bool relu : {false, true}) check_exactly({5, 33, 17, bias, relu});
}

TEST_P(Linear, equals_the_reference_in_the_shapes_of_the_models) {
  check_exactly({37, 784, 128, true, true});
  check_exactly({64, 256, 10});
  check_exactly({16, 3136, 128, true, true});
}

// One row, column or step of k less and more than a tile has.
TEST_P(Linear, equals_the_reference_at_the_edges_of_tiles) {
  for (const std::size_t batch : {127, 128, 129}) check_exactly({batch, 40, 24});
  for (const std::size_t in : {31, 32, 33, 63, 65}) check_exactly({16, in, 40});
  for (const std::size_t out : {31, 32, 33, 63, 64, 65}) check_exactly({16, 24, out});
}

TEST_P(Linear, splits_long_sums) { check_exactly({3000, 24, 16}); }

// Each product in a shape with enough tiles for wide ones, C[m][n] = 8 a[m] b[n] with k = 8 equal columns.
TEST_P(Linear, takes_wide_tiles) {
  const std::size_t rows = 900, columns = 2056, k = 8;
  const std::vector<float> a = test::integers(rows, 8, 1), b = test::integers(columns, 8, 2);
  // a or b as [elements, k], or as [k, elements].
  const auto beside = [&](const std::vector<float>& values) {
    std::vector<float> result(values.size() * k);
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = values[i / k];
    return result;
  };
  const auto below = [&](const std::vector<float>& values) {
    std::vector<float> result(values.size() * k);
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = values[i % values.size()];
    return result;
  };
  std::vector<double> expected;
  for (const float x : a)
    for (const float y : b) expected.push_back(static_cast<double>(k) * x * y);
  for (const Precision precision : {Precision::tf32, Precision::bf16})
    for (const Device device : test::test_devices(precision)) {
      SCOPED_TRACE(name_of(precision));
      const DType dtype = activation_dtype(precision);
      const Stream stream(device);
      const RealArray a_k(stream, {rows, k}, dtype, beside(a)), b_k(stream, {columns, k}, dtype, beside(b));
      const RealArray k_a(stream, {k, rows}, dtype, below(a)), k_b(stream, {k, columns}, dtype, below(b));
      const RealArray y(stream, {rows, columns}, dtype), dx(stream, {rows, columns}, dtype);
      const RealArray dweights(stream, {rows, columns}, DType::f32);
      make(device, {rows, k, columns, false, false, precision})->forward(stream, a_k, b_k, {}, y);
      test::expect_equal("y", y.values(), test::as_stored(precision, expected));
      make(device, {rows, columns, k, false, false, precision})->backward_data(stream, a_k, k_b, {}, dx);
      test::expect_equal("dx", dx.values(), test::as_stored(precision, expected));
      make(device, {k, columns, rows, false, false, precision})
          ->backward_weights(stream, k_b, k_a, dweights, {});
      test::expect_equal("dweights", dweights.values(), expected);
    }
}

TEST_P(Linear, takes_tensors_at_any_address) {
  for (const std::size_t skip : {1, 2, 3, 4, 5, 8}) check_exactly({9, 48, 32}, skip);
}

// Sums of n terms of order 1 with n up to 500.
TEST_P(Linear, stays_near_the_reference_for_real_values) {
  const LinearShape s{100, 500, 72};
  check(s, real_inputs(s, -1, 1), 5e-5);
}

// Terms of one sign: an operand that is cut off instead of rounded moves every sum the same way.
TEST_P(Linear, rounds_operands_to_the_nearest) {
  const LinearShape s{24, 256, 16};
  check(s, real_inputs(s, 1, 2), 1e-3);
}

TEST_P(Linear, gradients_equal_finite_differences) {
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

TEST_P(Linear, leaves_zeros_for_an_empty_batch) {
  for (const Precision precision : test::kPrecisions)
    for (const Device device : test::test_devices(precision)) {
      const LinearShape s{.batch = 0, .in_features = 3, .out_features = 2, .precision = precision};
      const Results result = run(device, s, integer_inputs(s));
      test::expect_equal("dweights", result.dweights, std::vector<float>(6, 0.0f));
      test::expect_equal("dbias", result.dbias, std::vector<float>(2, 0.0f));
    }
}

TEST_P(Linear, passes_nan_and_infinity_through_the_relu) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  for (const Precision precision : test::kPrecisions)
    for (const Device device : test::test_devices(precision)) {
      const LinearShape s{4, 1, 1, true, true, precision};
      const Results result = run(device, s, {{nan, infinity, -infinity, -2}, {3}, {1}, {0, 0, 0, 0}});
      test::expect_equal("y", result.y, std::vector<float>{nan, infinity, 0, 0});
    }
}

// In rows that are moved as packs and in others.
TEST_P(Linear, masks_the_data_gradient_where_the_relu_before_gave_nothing) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Precision precision : test::kPrecisions)
    for (const Device device : test::test_devices(precision))
      for (const std::size_t in : {5, 16}) {
        const LinearShape s{3, in, 1, false, false, precision};
        const DType dtype = activation_dtype(precision);
        std::vector<float> relu_output(3 * in, 0.5f), expected;
        relu_output[1] = 0, relu_output[3] = nan, relu_output[in + 2] = -1;
        for (std::size_t i = 0; i < relu_output.size(); ++i)
          expected.push_back(relu_output[i] > 0 ? static_cast<float>(2 * (i / in + 1)) : 0);
        const Stream stream(device);
        const RealArray dy(stream, y_shape(s), dtype, {1, 2, 3});
        const RealArray weights(stream, weights_shape(s), dtype, std::vector<float>(in, 2.0f));
        const RealArray mask(stream, x_shape(s), dtype, relu_output), dx(stream, x_shape(s), dtype);
        make(device, s)->backward_data(stream, dy, weights, mask, dx);
        test::expect_equal("dx", dx.values(), expected);
      }
}

#if ANNULUS_TESTS_ON_VIRTUAL_GPU
// The last rows of activations, and the last columns of weight gradients, of more than 2^31 elements.
TEST(TiledLinear, reaches_elements_beyond_2_31) {
  implementation = Implementation::tiled;
  constexpr std::size_t kMany = (std::size_t{1} << 28) + 5;
  const Stream stream(Device::cuda(0));
  const test::OnlyTheLastBlock only;
  for (const Precision precision : {Precision::f32, Precision::tf32}) {
    const auto ones = [](std::size_t count) { return std::vector<float>(count, 1.0f); };
    {
      const LinearShape s{kMany, 8, 8, false, false, precision};
      const auto plan = make(stream.device(), s);
      test::HugeArray x(stream, x_shape(s)), y(stream, y_shape(s)), weights(stream, weights_shape(s));
      weights.set(0, test::integers(64, 3, 1));
      const std::vector<float> last = test::integers(5 * 8, 4, 2);
      x.set((kMany - 5) * 8, last);
      plan->forward(stream, x, weights, {}, y);
      const auto expected =
          test::reference::conv2d_forward(test::reference::as_conv2d({5, 8, 8, false}), to_double(last),
                                          to_double(test::integers(64, 3, 1)), {});
      test::expect_equal("y", y.get((kMany - 5) * 8, 5 * 8), expected);
      test::HugeArray dx(stream, x_shape(s));
      plan->backward_data(stream, x, weights, {}, dx);
      const auto expected_dx = test::reference::conv2d_backward_data(
          test::reference::as_conv2d({5, 8, 8}), to_double(last), to_double(test::integers(64, 3, 1)));
      test::expect_equal("dx", dx.get((kMany - 5) * 8, 5 * 8), expected_dx);
    }
    constexpr std::size_t kBatch = 40, kIn = (std::size_t{1} << 26) + 8, kOut = 36;
    const LinearShape s{kBatch, kIn, kOut, false, false, precision};
    test::HugeArray x(stream, x_shape(s)), dy(stream, y_shape(s)), dweights(stream, weights_shape(s));
    dy.set(0, ones(kBatch * kOut));
    for (std::size_t row = 0; row < kBatch; ++row) x.set((row + 1) * kIn - 8, test::integers(8, 4, row));
    make(stream.device(), s)->backward_weights(stream, x, dy, dweights, {});
    std::vector<float> sums(8);
    for (std::size_t row = 0; row < kBatch; ++row)
      for (std::size_t i = 0; i < 8; ++i) sums[i] += test::integers(8, 4, row)[i];
    test::expect_equal("dweights", dweights.get(kOut * kIn - 8, 8), sums);
  }
}
#endif

TEST(LinearOnCpu, allocates_nothing_once_planned) {
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

TEST(TiledLinear, refuses_more_than_cuda_kernels_can_count) {
  implementation = Implementation::tiled;
  for (const Device device : test::test_devices())
    if (device.is_cuda())
      test::expect_error<ShapeError>(
          [&] {
            make(device, {std::size_t{1} << 31, 1, 1});
          },
          {"sums 2147483648 products", "smaller micro-batch"});
}

TEST(LinearOnCpu, refuses_what_does_not_fit) {
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
