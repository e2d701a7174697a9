#include "kernels/reduce.h"

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

constexpr std::size_t kCounts[] = {0, 1, 2, 15, 16, 17, 31, 33, 100, 1023, 1024, 1025, 4099, 70001};

template <class Result, class Op>
Result reduce(const Storage& storage, const Op& op, const std::vector<float>& x) {
  const auto& [device, dtype, skip] = storage;
  const Stream stream(device);
  const Buffer workspace(device, kernels::reduce_workspace_bytes(device, x.size()));
  const RealArray device_x(stream, {x.size()}, dtype, x, skip);
  const DeviceArray<Result> result(stream, {1});
  op(stream, device_x, workspace.data(), result);
  return result.values()[0];
}

TEST(Reduce, sums_integers_exactly) {
  for (const Storage& storage : test::storages())
    for (const std::size_t count : kCounts) {
      SCOPED_TRACE(fmt::format("{} elements, {}", count, storage.describe()));
      const auto x = test::integers(count, 8, 1);
      double sum = 0, squares = 0;
      for (const float value : x) {
        sum += static_cast<double>(value);
        squares += static_cast<double>(value * value);
      }
      EXPECT_EQ(static_cast<double>(reduce<float>(storage, kernels::sum, x)), sum);
      EXPECT_EQ(static_cast<double>(reduce<float>(storage, kernels::squared_norm, x)), squares);
    }
}

// A plain f32 sum of 2^18 times 0.1 is wrong by 10 or more.
TEST(Reduce, stays_accurate_over_many_elements) {
  const std::vector<float> x(1 << 18, 0.1f);
  const double count = 1 << 18;
  for (const Storage& storage : test::storages()) {
    const double value = static_cast<double>(test::rounded_to(storage.dtype, 0.1f));
    test::expect_close("sum", std::vector{reduce<float>(storage, kernels::sum, x)},
                       std::vector{value * count}, {8, 0});
    test::expect_close("squared_norm", std::vector{reduce<float>(storage, kernels::squared_norm, x)},
                       std::vector{value * value * count}, {8, 0});
  }
}

TEST(Reduce, gives_the_same_bits_each_time_and_shows_nan) {
  auto x = test::uniform(10007, -1, 1, 1);
  for (const Storage& storage : test::storages()) {
    const float first = reduce<float>(storage, kernels::sum, x);
    EXPECT_EQ(first, reduce<float>(storage, kernels::sum, x));
    auto broken = x;
    broken[7777] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(reduce<float>(storage, kernels::sum, broken)));
    EXPECT_TRUE(std::isnan(reduce<float>(storage, kernels::squared_norm, broken)));
  }
}

TEST(Reduce, finds_the_largest_magnitude) {
  for (const Storage& storage : test::storages())
    for (const std::size_t count : kCounts) {
      SCOPED_TRACE(fmt::format("{} elements, {}", count, storage.describe()));
      auto x = test::rounded_to(storage.dtype, test::uniform(count, -2, 1, 1));
      float largest = 0;
      for (const float value : x) largest = std::max(largest, std::abs(value));
      EXPECT_EQ(reduce<float>(storage, kernels::absmax, x), largest);
      if (count == 0) continue;
      x[count / 2] = -std::numeric_limits<float>::infinity();
      EXPECT_EQ(reduce<float>(storage, kernels::absmax, x), std::numeric_limits<float>::infinity());
      for (const std::size_t position : {std::size_t{0}, count - 1}) {
        auto broken = x;
        broken[position] = std::numeric_limits<float>::quiet_NaN();
        EXPECT_TRUE(std::isnan(reduce<float>(storage, kernels::absmax, broken)));
      }
    }
}

TEST(Reduce, finds_the_first_non_finite_element) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  for (const Storage& storage : test::storages())
    for (const std::size_t count : kCounts) {
      SCOPED_TRACE(fmt::format("{} elements, {}", count, storage.describe()));
      const auto x = test::uniform(count, -1e38f, 1e38f, 1);
      EXPECT_EQ(reduce<std::int64_t>(storage, kernels::first_non_finite, x), -1);
      for (const std::size_t position : {std::size_t{0}, count / 2, count - 1}) {
        if (count == 0) continue;
        for (const float value : {nan, -nan, infinity, -infinity}) {
          auto broken = x;
          broken[count - 1] = nan;
          broken[position] = value;
          EXPECT_EQ(reduce<std::int64_t>(storage, kernels::first_non_finite, broken),
                    static_cast<std::int64_t>(position));
        }
      }
    }
}

TEST(Reduce, refuses_a_result_of_another_shape) {
  const Stream stream(Device::cpu());
  const DeviceArray<float> x(stream, {4});
  test::expect_error<ShapeError>([&] { kernels::sum(stream, x, nullptr, x); },
                                 {"sum: result must have one element, but its shape is [4]"});
  test::expect_error<ShapeError>(
      [&] { kernels::first_non_finite(stream, x, nullptr, DeviceArray<float>(stream, {1})); },
      {"first_non_finite: result must be i64"});
  const RealArray rounded(stream, {4}, DType::bf16);
  test::expect_error<ShapeError>(
      [&] { kernels::absmax(stream, rounded, nullptr, DeviceArray<float>(stream, {1})); },
      {"absmax: x is bf16, which needs a CUDA device"});
}

}  // namespace
}  // namespace annulus
