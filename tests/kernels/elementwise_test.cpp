#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_values.h"
#include "tests/support/storages.h"
#if ANNULUS_TESTS_ON_VIRTUAL_GPU
#include "tests/virtual_gpu/virtual_gpu.h"
#endif

namespace annulus {
namespace {

using test::DeviceArray;
using test::RealArray;
using test::Storage;

constexpr std::size_t kCounts[] = {0, 1, 2, 7, 16, 31, 33, 64, 127, 1009, 4099};

TEST(Elementwise, fills) {
  for (const auto& [device, dtype, skip] : test::storages())
    for (const std::size_t count : kCounts) {
      const Stream stream(device);
      const RealArray y(stream, {count}, dtype, skip);
      kernels::fill(stream, -2.5f, y);
      test::expect_equal("y", y.values(), std::vector<float>(count, -2.5f));
    }
}

TEST(Elementwise, scales_and_adds_with_one_rounding) {
  for (const Storage& storage : test::storages())
    for (const std::size_t count : kCounts) {
      const auto& [device, dtype, skip] = storage;
      SCOPED_TRACE(fmt::format("{} elements, {}", count, storage.describe()));
      const auto a = test::rounded_to(dtype, test::uniform(count, -10, 10, 1));
      const auto b = test::rounded_to(dtype, test::uniform(count, -1, 1, 2));
      std::vector<float> scaled(count), sum(count);
      for (std::size_t i = 0; i < count; ++i) {
        scaled[i] = test::rounded_to(dtype, 0.3f * a[i]);
        sum[i] = test::rounded_to(dtype, a[i] + b[i]);
      }
      const Stream stream(device);
      const RealArray device_a(stream, {count}, dtype, a, skip), device_b(stream, {count}, dtype, b, skip);
      const RealArray y(stream, {count}, dtype, skip);
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
  for (const auto& [device, dtype, skip] : test::storages())
    for (const std::size_t batch : {0, 1, 3})
      for (const std::size_t rows : {1, 2, 4, 7, 16, 33, 49})
        for (const std::size_t columns : {1, 3, 4, 8, 13, 64, 65}) {
          SCOPED_TRACE(fmt::format("[{}, {}, {}] on {}", batch, rows, columns, device.to_string()));
          std::vector<float> x(batch * rows * columns), expected(x.size());
          for (std::size_t i = 0; i < x.size(); ++i) x[i] = test::rounded_to(dtype, static_cast<float>(i));
          for (std::size_t b = 0; b < batch; ++b)
            for (std::size_t r = 0; r < rows; ++r)
              for (std::size_t c = 0; c < columns; ++c)
                expected[(b * columns + c) * rows + r] = x[(b * rows + r) * columns + c];
          const Stream stream(device);
          const RealArray device_x(stream, {batch, rows, columns}, dtype, x, skip);
          const RealArray y(stream, {batch, columns, rows}, dtype, skip);
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

TEST(Elementwise, casts_like_the_conversions_of_one_element) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};
  for (const Device device : test::test_devices())
    for (const DType from : kDTypes)
      for (const DType to : kDTypes)
        for (const std::size_t count : kCounts)
          for (const std::size_t skip : {0, 1}) {
            SCOPED_TRACE(
                fmt::format("{} from {} to {} on {}", count, name_of(from), name_of(to), device.to_string()));
            auto x = test::uniform(count, -70000, 70000, 1);           // beyond f16
            for (std::size_t i = 0; i < count; i += 2) x[i] *= 1e-9f;  // where f16 has few digits or none
            if (count > 7) x[3] = nan, x[4] = infinity, x[5] = -infinity, x[6] = -0.0f;
            x = test::rounded_to(from, x);
            const Stream stream(device);
            const RealArray device_x(stream, {count}, from, x, skip), y(stream, {count}, to, skip);
            kernels::cast(stream, device_x, y);
            test::expect_equal("y", y.values(), test::rounded_to(to, x));
          }
}

TEST(Elementwise, refuses_shapes_that_differ) {
  const Stream stream(Device::cpu());
  const DeviceArray<float> a(stream, {2, 3}), b(stream, {6});
  test::expect_error<ShapeError>([&] { kernels::add(stream, a, b, a); }, {"add: b must be f32 [2, 3]"});
  test::expect_error<ShapeError>([&] { kernels::scale(stream, 1, a, b); }, {"scale: y"});
  test::expect_error<ShapeError>([&] { kernels::transpose_inner(stream, a, a); },
                                 {"transpose_inner: x must have 3 axes, but its shape is [2, 3]"});
  const DeviceArray<std::int32_t> integers(stream, {2, 3});
  test::expect_error<ShapeError>([&] { kernels::cast(stream, a, integers); },
                                 {"cast: x and y must be f32, bf16 or f16, not f32 and i32"});
  test::expect_error<ShapeError>([&] { kernels::cast(stream, a, b); }, {"cast: y must be f32 [2, 3]"});
  const RealArray rounded(stream, {2, 3}, DType::bf16);
  test::expect_error<ShapeError>([&] { kernels::add(stream, a, rounded, a); }, {"add: b must be f32 [2, 3]"});
  test::expect_error<ShapeError>([&] { kernels::scale(stream, 1, rounded, rounded); },
                                 {"scale: x is bf16, which needs a CUDA device"});
  const DeviceArray<float> images(stream, {1, 2, 3});
  test::expect_error<ShapeError>([&] { kernels::transpose_inner(stream, images, images); },
                                 {"y must be f32 [1, 3, 2]"});
}

}  // namespace
}  // namespace annulus
