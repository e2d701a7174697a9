#include "kernels/pool2d.h"

#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_values.h"
#include "tests/support/reference.h"
#include "tests/support/storages.h"

namespace annulus {
namespace {

using kernels::Pool2dShape;
using test::DeviceArray;
using test::RealArray;
using test::Storage;
using test::to_double;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::string name_of(const Pool2dShape& s, const Storage& storage) {
  return fmt::format("{} window {} stride {}, {}", s.input().to_string(), s.window, s.stride,
                     storage.describe());
}

void check(const Pool2dShape& s, const std::vector<float>& x, const std::vector<float>& dy) {
  const auto [y, argmax] = test::reference::max_pool2d_forward(s, to_double(x));
  std::vector<double> masked = to_double(dy);
  for (std::size_t i = 0; i < masked.size(); ++i)
    if (!(y[i] > 0)) masked[i] = 0;
  for (const Storage& storage : test::storages()) {
    const auto& [device, dtype, skip] = storage;
    SCOPED_TRACE(name_of(s, storage));
    const Stream stream(device);
    const RealArray device_x(stream, s.input(), dtype, x, skip),
        device_dy(stream, s.output(), dtype, dy, skip);
    const RealArray device_y(stream, s.output(), dtype, skip), dx(stream, s.input(), dtype, skip),
        masked_dx(stream, s.input(), dtype, skip);
    const DeviceArray<std::uint8_t> device_argmax(stream, s.output());
    kernels::max_pool2d_forward(stream, s, device_x, device_y, device_argmax);
    test::expect_equal("y", device_y.values(), y);
    test::expect_equal("argmax", device_argmax.values(), argmax);
    kernels::max_pool2d_backward(stream, s, device_dy, device_argmax, {}, dx);
    test::expect_equal("dx", dx.values(), test::reference::max_pool2d_backward(s, to_double(dy), argmax));
    kernels::max_pool2d_backward(stream, s, device_dy, device_argmax, device_y, masked_dx);
    test::expect_equal("dx behind a ReLU", masked_dx.values(),
                       test::reference::max_pool2d_backward(s, masked, argmax));
  }
}

// Integers in a small range: many windows have several largest elements, and overlapping windows add up.
void check_integers(const Pool2dShape& s) {
  check(s, test::integers(s.input().elements(), 3, 1), test::integers(s.output().elements(), 9, 2));
}

TEST(MaxPool2d, equals_the_reference_for_every_window_and_stride) {
  for (const std::size_t window : {1, 2, 3, 5})
    for (const std::size_t stride : {1, 2, 3, 6})
      for (const std::size_t channels : {1, 6, 16}) check_integers({2, 9, 8, channels, window, stride});
}

TEST(MaxPool2d, equals_the_reference_for_every_count_of_channels) {
  for (const std::size_t channels : {1, 2, 3, 7, 8, 15, 17, 31, 32, 33, 64, 65, 100, 128})
    for (const std::size_t batch : {1, 3}) check_integers({batch, 6, 4, channels, 2, 2});
}

TEST(MaxPool2d, takes_images_that_windows_do_not_tile) {
  for (const std::size_t height : {2, 5, 7})
    for (const std::size_t width : {3, 5}) check_integers({3, height, width, 18, 2, 2});
  check_integers({1, 15, 15, 3, 15, 1});
  check_integers({1, 32, 31, 2, 15, 14});
}

TEST(MaxPool2d, takes_an_empty_batch) { check({0, 4, 4, 3, 2, 2}, {}, {}); }

TEST(MaxPool2d, lets_the_first_nan_win_and_knows_infinities) {
  // Each column of four is one window of 2 x 2 over one channel.
  const std::vector<float> windows[] = {{1, kNan, 3, kNan},
                                        {kNan, 1, 2, 3},
                                        {-kNan, kInfinity, 0, kNan},
                                        {-kInfinity, -kInfinity, -kInfinity, -kInfinity},
                                        {-kInfinity, -5, kInfinity, kInfinity},
                                        {-0.0f, 0.0f, -1, -1},
                                        {2, 2, 2, 2},
                                        {-3, -1, -2, -1}};
  const std::size_t channels = std::size(windows);
  std::vector<float> x(4 * channels), dy(channels, 1);
  for (std::size_t c = 0; c < channels; ++c)
    for (std::size_t k = 0; k < 4; ++k) x[k * channels + c] = windows[c][k];
  check({1, 2, 2, channels, 2, 2}, x, dy);
  // The same windows through the path for windows of any size.
  std::vector<float> padded(9 * channels, -kInfinity);
  for (std::size_t k = 0; k < 4; ++k)
    std::copy_n(x.begin() + static_cast<std::ptrdiff_t>(k * channels), channels,
                padded.begin() + static_cast<std::ptrdiff_t>((k / 2 * 3 + k % 2) * channels));
  check({1, 3, 3, channels, 3, 1}, padded, dy);
}

TEST(MaxPool2d, refuses_what_does_not_fit) {
  test::expect_error<ShapeError>([] { Pool2dShape{1, 4, 4, 1, 16, 1}.check(); }, {"1 to 15, not 16"});
  test::expect_error<ShapeError>([] { Pool2dShape{1, 4, 3, 1, 4, 1}.check(); },
                                 {"a window of 4 does not fit into an image of 4 x 3"});
  test::expect_error<ShapeError>([] { Pool2dShape{1, 4, 4, 1, 2, 0}.check(); }, {"stride"});
  test::expect_error<ShapeError>([] { Pool2dShape{1, 0, 4, 1, 2, 1}.check(); }, {"must not be empty"});
  const Stream stream(Device::cpu());
  const Pool2dShape s{1, 4, 4, 2};
  const DeviceArray<float> x(stream, s.input()), y(stream, s.output());
  test::expect_error<ShapeError>([&] { kernels::max_pool2d_forward(stream, s, x, y, y); },
                                 {"argmax must be u8 [1, 2, 2, 2]"});
  const RealArray rounded(stream, s.input(), DType::bf16);
  const DeviceArray<std::uint8_t> argmax(stream, s.output());
  test::expect_error<ShapeError>([&] { kernels::max_pool2d_forward(stream, s, rounded, y, argmax); },
                                 {"max_pool2d_forward: x is bf16, which needs a CUDA device"});
}

TEST(GlobalAveragePool, is_the_mean_and_spreads_its_gradient) {
  for (const Storage& storage : test::storages())
    for (const std::size_t batch : {0, 1, 3})
      for (const std::size_t height : {1, 2, 8})
        for (const std::size_t channels : {1, 3, 16, 67}) {
          const std::size_t width = 7, pixels = height * width;
          const Shape image{batch, height, width, channels}, row{batch, channels};
          const auto& [device, dtype, skip] = storage;
          SCOPED_TRACE(image.to_string() + ", " + storage.describe());
          const auto x = test::rounded_to(dtype, test::uniform(image.elements(), -1, 3, 1)),
                     dy = test::rounded_to(dtype, test::uniform(row.elements(), -1, 1, 2));
          std::vector<double> y(row.elements()), dx(image.elements());
          for (std::size_t i = 0; i < x.size(); ++i) {
            const std::size_t output = i / (pixels * channels) * channels + i % channels;
            y[output] += static_cast<double>(x[i]) / static_cast<double>(pixels);
            dx[i] = static_cast<double>(dy[output]) / static_cast<double>(pixels);
          }
          const Stream stream(device);
          const RealArray device_x(stream, image, dtype, x, skip), device_dy(stream, row, dtype, dy, skip);
          const RealArray device_y(stream, row, dtype, skip), device_dx(stream, image, dtype, skip);
          kernels::global_average_pool_forward(stream, device_x, device_y);
          kernels::global_average_pool_backward(stream, device_dy, device_dx);
          // The terms are below 3 and may cancel.
          test::expect_close("y", device_y.values(), y,
                             {dtype == DType::f32 ? 2 : 0.51, 1e-6, test::epsilon_of(dtype)});
          test::expect_close("dx", device_dx.values(), dx,
                             {dtype == DType::f32 ? 1 : 0.51, 0, test::epsilon_of(dtype)});
        }
}

TEST(GlobalAveragePool, refuses_shapes_that_differ) {
  const Stream stream(Device::cpu());
  const DeviceArray<float> x(stream, {2, 3, 3, 5}), y(stream, {2, 3});
  test::expect_error<ShapeError>([&] { kernels::global_average_pool_forward(stream, x, y); },
                                 {"y must be f32 [2, 5]"});
  test::expect_error<ShapeError>([&] { kernels::global_average_pool_backward(stream, y, y); },
                                 {"dx must have 4 axes"});
}

}  // namespace
}  // namespace annulus
