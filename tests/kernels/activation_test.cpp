#include "kernels/activation.h"

#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_values.h"

namespace annulus {
namespace {

using test::DeviceArray;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Relu, keeps_what_is_positive_and_passes_its_gradient) {
  for (const Device device : test::test_devices())
    for (const std::size_t count : {0, 1, 2, 7, 16, 31, 33, 64, 127, 1009, 4099}) {
      SCOPED_TRACE(fmt::format("{} elements on {}", count, device.to_string()));
      const auto x = test::integers(count, 3, 1), dy = test::integers(count, 100, 2);
      std::vector<float> y(count), dx(count);
      for (std::size_t i = 0; i < count; ++i) {
        y[i] = x[i] < 0 ? 0 : x[i];
        dx[i] = y[i] > 0 ? dy[i] : 0;
      }
      const Stream stream(device);
      const DeviceArray<float> device_x(stream, {count}, x), device_dy(stream, {count}, dy);
      const DeviceArray<float> device_y(stream, {count}), device_dx(stream, {count});
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

TEST(Relu, keeps_nan_and_infinity) {
  for (const Device device : test::test_devices()) {
    const Stream stream(device);
    const DeviceArray<float> x(stream, {5}, {kNan, -kNan, kInfinity, -kInfinity, -0.0f}), y(stream, {5});
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
  test::expect_error<ShapeError>(
      [&] {
        kernels::relu_forward(stream, x, Tensor(nullptr, {2, 3}));
      },
      {"without memory"});
}

}  // namespace
}  // namespace annulus
