// The arithmetic under the all-reduce: 16-bit formats against their definition, integers that wrap.
#include "nccl/ordered_sum.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace annulus {
namespace {

template <class T>
T sum_of(std::vector<T> values, DType dtype) {
  std::vector<std::byte*> sources;
  for (T& value : values) sources.push_back(reinterpret_cast<std::byte*>(&value));
  T sum{};
  std::byte* const destination = reinterpret_cast<std::byte*>(&sum);
  ordered_sum(sources.data(), static_cast<int>(sources.size()), &destination, 1, 1, dtype);
  return sum;
}

// The value of a 16-bit float by its definition: sign, exponent, fraction (IEEE 754-2019, 3.4).
double decode(std::uint16_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const double fraction = std::ldexp(bits & ((1 << fraction_bits) - 1), -fraction_bits);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  return sign *
         (exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1.0 + fraction, exponent - bias));
}

struct Format {
  DType dtype;
  int exponent_bits;
  int fraction_bits;
};
constexpr Format kFormats[] = {{DType::f16, 5, 10}, {DType::bf16, 8, 7}};

TEST(OrderedSum, KeepsEvery16BitValueThatMeetsZero) {
  for (const Format& format : kFormats) {
    for (unsigned bits = 0; bits < 0x10000; ++bits) {
      const auto value = static_cast<std::uint16_t>(bits);
      const std::uint16_t sum = sum_of<std::uint16_t>({value, 0}, format.dtype);
      if (std::isnan(decode(value, format.exponent_bits, format.fraction_bits))) {
        ASSERT_TRUE(std::isnan(decode(sum, format.exponent_bits, format.fraction_bits))) << bits;
      } else if (bits == 0x8000) {
        ASSERT_EQ(sum, 0) << "-0 + 0 is 0";
      } else {
        ASSERT_EQ(sum, value);
      }
    }
  }
}

// No neighbour of the rounded sum is nearer to the exact one, and at equal distance the even one was taken.
TEST(OrderedSum, Rounds16BitSumsToTheNearestOnce) {
  for (const Format& format : kFormats) {
    const auto value_of = [&](std::uint16_t bits) {
      return decode(bits, format.exponent_bits, format.fraction_bits);
    };
    for (unsigned step = 0; step < 0x10000; step += 37) {
      const auto a = static_cast<std::uint16_t>(step), b = static_cast<std::uint16_t>(step * 40503u >> 3);
      const double exact = value_of(a) + value_of(b);
      const auto single = static_cast<float>(exact);  // bf16 and f16 are added in f32
      const std::uint16_t sum = sum_of<std::uint16_t>({a, b}, format.dtype);
      if (std::isnan(exact) || std::isinf(value_of(sum)) || value_of(sum) == single) continue;
      const double error = std::abs(value_of(sum) - single);
      for (const int neighbour : {sum - 1, sum + 1}) {
        const double other = value_of(static_cast<std::uint16_t>(neighbour));
        if (std::isnan(other)) continue;
        ASSERT_LE(error, std::abs(other - single)) << step;
        if (error == std::abs(other - single)) {
          ASSERT_EQ(sum % 2, 0) << step;
        }
      }
    }
  }
}

TEST(OrderedSum, OverflowsToInfinityWhereF16Ends) {
  const std::uint16_t largest = 0x7BFF;                                      // 65504
  EXPECT_EQ(sum_of<std::uint16_t>({largest, 0x4BFF}, DType::f16), largest);  // + 15.992: rounds down
  EXPECT_EQ(sum_of<std::uint16_t>({largest, 0x4C00}, DType::f16), 0x7C00);   // + 16: a tie, to infinity
  EXPECT_EQ(sum_of<std::uint16_t>({0xFBFF, 0xCC00}, DType::f16), 0xFC00);
}

TEST(OrderedSum, AddsSeveral16BitValuesInSinglePrecision) {
  // 1 + 2^-8 + 2^-8 in bf16 (8 significant bits): each step alone would round back to 1, the sum does not.
  const std::uint16_t one = 0x3F80, tiny = 0x3B80;
  EXPECT_EQ(sum_of<std::uint16_t>({one, tiny, tiny}, DType::bf16), 0x3F81);
}

TEST(OrderedSum, IntegersWrapAround) {
  constexpr auto kMax = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(sum_of<std::int32_t>({kMax, 1}, DType::i32), std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(sum_of<std::uint8_t>({200, 100, 1}, DType::u8), 45);
}

}  // namespace
}  // namespace annulus
