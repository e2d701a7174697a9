#include "core/base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace annulus {
namespace {

// The value of a 16-bit format's bits, from its definition.
double value_of(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const std::uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = bits >> 15 != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(1 + std::ldexp(mantissa, -mantissa_bits), exponent - bias);
}

template <class T>
void check_every_value(int exponent_bits, int mantissa_bits) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const T half{static_cast<std::uint16_t>(bits)};
    const double expected = value_of(bits, exponent_bits, mantissa_bits);
    const float value = to_float(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_EQ(from_float<T>(value).bits, 0x7fff) << bits;
    } else {
      EXPECT_EQ(static_cast<double>(value), expected) << bits;
      EXPECT_EQ(from_float<T>(value).bits, bits);
    }
  }
}

TEST(Half, every_bfloat16_is_its_value_and_comes_back) { check_every_value<BFloat16>(8, 7); }

TEST(Half, every_float16_is_its_value_and_comes_back) { check_every_value<Float16>(5, 10); }

// Between two neighbours the nearer one, and the even one from the middle.
template <class T>
void check_rounding(std::uint32_t largest) {
  for (std::uint32_t bits = 0; bits < largest; ++bits) {
    const auto low = to_float(T{static_cast<std::uint16_t>(bits)});
    const auto high = to_float(T{static_cast<std::uint16_t>(bits + 1)});
    const float middle = low + (high - low) / 2;  // exact: f32 has more bits
    const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    EXPECT_EQ(from_float<T>(middle).bits, even);
    EXPECT_EQ(from_float<T>(std::nextafter(middle, low)).bits, bits);
    EXPECT_EQ(from_float<T>(std::nextafter(middle, high)).bits, bits + 1);
    EXPECT_EQ(from_float<T>(-middle).bits, even | 0x8000u);
  }
}

TEST(Half, rounds_to_the_nearest_and_to_even) {
  check_rounding<BFloat16>(0x7f7f);
  check_rounding<Float16>(0x7bff);
}

TEST(Half, overflows_to_infinity) {
  EXPECT_EQ(to_float16(65519.996f).bits, 0x7bff);
  EXPECT_EQ(to_float16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_float16(-1e30f).bits, 0xfc00);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
}

}  // namespace
}  // namespace annulus
