// What the tests of matrix products and convolutions know about precisions.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "core/base/precision.h"
#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/real_array.h"

namespace annulus::test {

inline constexpr Precision kPrecisions[] = {Precision::f32, Precision::tf32, Precision::bf16};

/// The devices that compute in `precision`.
inline std::vector<Device> test_devices(Precision precision) {
  std::vector<Device> devices = test_devices();
  if (precision != Precision::f32) std::erase(devices, Device::cpu());
  return devices;
}

/// The nearest number with 10 bits of mantissa, ties away from zero; for finite values.
inline float rounded_to_tf32(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits = (bits + (1u << 12)) & ~0x1fffu;
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

/// Values as the products of a precision see them: tensors are stored in its format, operands rounded.
inline std::vector<double> as_operand(Precision precision, std::vector<float> values) {
  for (float& value : values)
    value = precision == Precision::tf32 ? rounded_to_tf32(value)
                                         : rounded_to(activation_dtype(precision), value);
  return {values.begin(), values.end()};
}

/// References as a tensor of the precision's activations holds them.
inline std::vector<float> as_stored(Precision precision, const std::vector<double>& values) {
  return rounded_to(activation_dtype(precision), std::vector<float>(values.begin(), values.end()));
}

/// For activations that are f32 sums with an error up to `slack`, rounded to the precision's format.
inline Tolerance tolerance_of(Precision precision, double slack) {
  const DType dtype = activation_dtype(precision);
  return {dtype == DType::f32 ? 4.0 : 0.51, slack, epsilon_of(dtype)};
}

}  // namespace annulus::test
