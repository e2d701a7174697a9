#include "kernels/activation.h"

#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_values.h"
#include "tests/support/storages.h"

namespace annulus {
namespace {

using test::DeviceArray;
using test::RealArray;
using test::Storage;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Relu, keeps_what_is_positive_and_passes_its_gradient) {
  for (const auto& [device, dtype, skip] : test::storages())
    for (const std::size_t count : {0, 1, 2, 7, 16, 31, 33, 64, 127, 1009, 4099}) {
      SCOPED_TRACE(fmt::format("{} elements, {}", count, Storage{device, dtype, skip}.describe()));
      const auto x = test::integers(count, 3, 1), dy = test::integers(count, 100, 2);
      std::vector<float> y(count), dx(count);
      for (std::size_t i = 0; i < count; ++i) {
        y[i] = x[i] < 0 ? 0 : x[i];
        dx[i] = y[i] > 0 ? dy[i] : 0;
      }
      const Stream stream(device);
      const RealArray device_x(stream, {count}, dtype, x, skip), device_dy(stream, {count}, dtype, dy, skip);
      const RealArray device_y(stream, {count}, dtype, skip), device_dx(stream, {count}, dtype, skip);
      kernels::relu_forward(stream, device_x, device_y);
      kernels::relu_backward(stream, device_dy, device_y, device_dx);
      test::expect_equal("y", device_y.values(), y);
      test::expect_equal("dx", device_dx.values(), dx);
      // In place.
      kernels::relu_forward(stream, device_x, device_x);
      kernels::relu_backward(stream, device_dy, device_y, device_dy);
      test::expect_equal("y in place", device_x.values(), y);
      test::expect_equal("dx in place", device_dy.values(), dx);
    }
}

// Where no place is aligned in all of them, elements are moved one by one.
TEST(Relu, takes_arrays_that_are_aligned_differently) {
  const std::size_t count = 100;
  const auto dy = test::integers(count, 100, 1), y = test::integers(count, 1, 2);
  std::vector<float> dx(count);
  for (std::size_t i = 0; i < count; ++i) dx[i] = y[i] > 0 ? dy[i] : 0;
  for (const auto& [device, dtype, skip] : test::storages())
    for (const std::size_t odd : {0, 1, 2}) {
      const Stream stream(device);
      const RealArray device_dy(stream, {count}, dtype, dy, skip + (odd == 0 ? 1 : 0));
      const RealArray device_y(stream, {count}, dtype, y, skip + (odd == 1 ? 1 : 0));
      const RealArray device_dx(stream, {count}, dtype, skip + (odd == 2 ? 1 : 0));
      kernels::relu_backward(stream, device_dy, device_y, device_dx);
      test::expect_equal("dx", device_dx.values(), dx);
    }
}

TEST(Relu, keeps_nan_and_infinity) {
  for (const auto& [device, dtype, skip] : test::storages()) {
    const Stream stream(device);
    const RealArray x(stream, {5}, dtype, {kNan, -kNan, kInfinity, -kInfinity, -0.0f}, skip);
    const RealArray y(stream, {5}, dtype, skip);
    kernels::relu_forward(stream, x, y);
    test::expect_equal("y", y.values(), std::vector<float>{kNan, kNan, kInfinity, 0, 0});
  }
}

TEST(Relu, refuses_shapes_that_differ) {
  const Stream stream(Device::cpu());
  const DeviceArray<float> x(stream, {2, 3}), y(stream, {3, 2});
  const DeviceArray<std::int32_t> integers(stream, {2, 3});
  test::expect_error<ShapeError>([&] { kernels::relu_forward(stream, x, y); },
                                 {"relu_forward: y must be f32 [2, 3] on cpu, but is f32 [3, 2]"});
  test::expect_error<ShapeError>([&] { kernels::relu_forward(stream, integers, x); }, {"x", "i32"});
  test::expect_error<ShapeError>([&] { kernels::relu_backward(stream, x, y, x); }, {"relu_backward: y"});
  const RealArray rounded(stream, {2, 3}, DType::bf16);
  test::expect_error<ShapeError>([&] { kernels::relu_forward(stream, rounded, rounded); },
                                 {"relu_forward: x is bf16, which needs a CUDA device"});
  test::expect_error<ShapeError>(
      [&] {
        kernels::relu_forward(stream, x, Tensor(nullptr, {2, 3}));
      },
      {"without memory"});
}

}  // namespace
}  // namespace annulus
