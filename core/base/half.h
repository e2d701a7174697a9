// The 16-bit floating-point formats as storage; arithmetic is done in f32. Conversions are exact bit
// operations, round to nearest even, and the same on host and device.
#pragma once

#include <cstdint>

#include "core/base/dtype.h"
#include "core/base/host_device.h"

namespace annulus {

/// The upper half of an f32: 8 bits of exponent, 7 of mantissa.
struct BFloat16 {
  std::uint16_t bits;
};

/// IEEE 754 binary16: 5 bits of exponent, 10 of mantissa; finite up to 65504.
struct Float16 {
  std::uint16_t bits;
};

template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::f16;
};

ANNULUS_HOST_DEVICE constexpr float to_float(float value) { return value; }

ANNULUS_HOST_DEVICE constexpr float to_float(BFloat16 value) {
  return __builtin_bit_cast(float, std::uint32_t{value.bits} << 16);
}

ANNULUS_HOST_DEVICE constexpr float to_float(Float16 value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = value.bits >> 10 & 31u;
  const std::uint32_t mantissa = value.bits & 1023u;
  if (exponent == 31) return __builtin_bit_cast(float, sign | 0x7f800000u | mantissa << 13);
  if (exponent != 0) return __builtin_bit_cast(float, sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // zero or subnormal
  return sign != 0 ? -magnitude : magnitude;
}

/// NaN becomes the canonical NaN, as the instructions of the devices have it.
ANNULUS_HOST_DEVICE constexpr BFloat16 to_bfloat16(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

ANNULUS_HOST_DEVICE constexpr Float16 to_float16(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {0x7fff};
  if (magnitude >= 0x477ff000u)
    return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // 65520 rounds to infinity
  if (magnitude < 0x38800000u) {                          // below the smallest normal, 2^-14
    // Added to 0.5, the magnitude's bits of weight 2^-24 and more end up in the last places of the sum.
    const float sum = __builtin_bit_cast(float, magnitude) + 0.5f;
    return {static_cast<std::uint16_t>(sign | (__builtin_bit_cast(std::uint32_t, sum) - 0x3f000000u))};
  }
  const std::uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return {static_cast<std::uint16_t>(sign | (rounded - (112u << 23)) >> 13)};
}

/// `value` as a T: float, BFloat16 or Float16.
template <class T>
ANNULUS_HOST_DEVICE constexpr T from_float(float value) = delete;
template <>
ANNULUS_HOST_DEVICE constexpr float from_float<float>(float value) {
  return value;
}
template <>
ANNULUS_HOST_DEVICE constexpr BFloat16 from_float<BFloat16>(float value) {
  return to_bfloat16(value);
}
template <>
ANNULUS_HOST_DEVICE constexpr Float16 from_float<Float16>(float value) {
  return to_float16(value);
}

}  // namespace annulus
