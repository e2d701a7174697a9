#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_values.h"
#if ANNULUS_TESTS_ON_VIRTUAL_GPU
#include "tests/virtual_gpu/virtual_gpu.h"
#endif

namespace annulus {
namespace {

using test::DeviceArray;

constexpr std::size_t kCounts[] = {0, 1, 2, 7, 16, 31, 33, 64, 127, 1009, 4099};

TEST(Elementwise, fills) {
  for (const Device device : test::test_devices())
    for (const std::size_t count : kCounts) {
      const Stream stream(device);
      const DeviceArray<float> y(stream, {count});
      kernels::fill(stream, -2.5f, y);
      test::expect_equal("y", y.values(), std::vector<float>(count, -2.5f));
    }
}

TEST(Elementwise, scales_and_adds_with_one_rounding) {
  for (const Device device : test::test_devices())
    for (const std::size_t count : kCounts) {
      SCOPED_TRACE(fmt::format("{} elements on {}", count, device.to_string()));
      const auto a = test::uniform(count, -10, 10, 1), b = test::uniform(count, -1, 1, 2);
      std::vector<float> scaled(count), sum(count);
      for (std::size_t i = 0; i < count; ++i) {
        scaled[i] = 0.3f * a[i];
        sum[i] = a[i] + b[i];
      }
      const Stream stream(device);
      const DeviceArray<float> device_a(stream, {count}, a), device_b(stream, {count}, b);
      const DeviceArray<float> y(stream, {count});
      kernels::scale(stream, 0.3f, device_a, y);
      test::expect_equal("scaled", y.values(), scaled);
      kernels::add(stream, device_a, device_b, y);
      test::expect_equal("sum", y.values(), sum);
      // In place, over either operand.
      kernels::add(stream, device_a, device_b, device_b);
      test::expect_equal("sum in place", device_b.values(), sum);
      kernels::scale(stream, 0.3f, device_a, device_a);
      test::expect_equal("scaled in place", device_a.values(), scaled);
    }
}

TEST(Elementwise, transposes_the_inner_axes) {
  for (const Device device : test::test_devices())
    for (const std::size_t batch : {0, 1, 3})
      for (const std::size_t rows : {1, 2, 4, 7, 16, 33, 49})
        for (const std::size_t columns : {1, 3, 4, 8, 13, 64, 65}) {
          SCOPED_TRACE(fmt::format("[{}, {}, {}] on {}", batch, rows, columns, device.to_string()));
          std::vector<float> x(batch * rows * columns), expected(x.size());
          for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
          for (std::size_t b = 0; b < batch; ++b)
            for (std::size_t r = 0; r < rows; ++r)
              for (std::size_t c = 0; c < columns; ++c)
                expected[(b * columns + c) * rows + r] = x[(b * rows + r) * columns + c];
          const Stream stream(device);
          const DeviceArray<float> device_x(stream, {batch, rows, columns}, x);
          const DeviceArray<float> y(stream, {batch, columns, rows});
          kernels::transpose_inner(stream, device_x, y);
          test::expect_equal("y", y.values(), expected);
        }
}

#if ANNULUS_TESTS_ON_VIRTUAL_GPU
// The first block's share of the grid-stride loop has the first and the last elements in it.
TEST(Elementwise, adds_beyond_2_31_elements) {
  constexpr std::size_t kCount = (std::size_t{1} << 31) + 5;
  const Stream stream(Device::cuda(0));
  const virtual_gpu::SparseAllocations sparse(virtual_gpu::SparseContents::zeros);
  const virtual_gpu::OnlyBlocks only([](std::size_t) { return std::vector<std::size_t>{0}; });
  const Buffer a(stream.device(), kCount * sizeof(float)), b(stream.device(), kCount * sizeof(float));
  const Buffer y(stream.device(), kCount * sizeof(float));
  const auto last = [](const Buffer& array) { return static_cast<float*>(array.data()) + kCount - 5; };
  const std::vector<float> five{1, 2, 3, 4, 5};
  for (const Buffer* const operand : {&a, &b})
    copy_bytes(stream, last(*operand), five.data(), 5 * sizeof(float));
  const auto whole = [](const Buffer& array) {
    return Tensor(array.data(), {kCount}, DType::f32, array.device());
  };
  kernels::add(stream, whole(a), whole(b), whole(y));
  std::vector<float> sums(5);
  copy_bytes(stream, sums.data(), last(y), 5 * sizeof(float));
  stream.synchronize();
  test::expect_equal("the last sums", sums, std::vector<float>{2, 4, 6, 8, 10});
}
#endif

TEST(Elementwise, refuses_shapes_that_differ) {
  const Stream stream(Device::cpu());
  const DeviceArray<float> a(stream, {2, 3}), b(stream, {6});
  test::expect_error<ShapeError>([&] { kernels::add(stream, a, b, a); }, {"add: b must be f32 [2, 3]"});
  test::expect_error<ShapeError>([&] { kernels::scale(stream, 1, a, b); }, {"scale: y"});
  test::expect_error<ShapeError>([&] { kernels::transpose_inner(stream, a, a); },
                                 {"transpose_inner: x must have 3 axes, but its shape is [2, 3]"});
  const DeviceArray<float> images(stream, {1, 2, 3});
  test::expect_error<ShapeError>([&] { kernels::transpose_inner(stream, images, images); },
                                 {"y must be f32 [1, 3, 2]"});
}

}  // namespace
}  // namespace annulus
