// Element types of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace annulus {

enum class DType : std::uint8_t { f32, f64, bf16, f16, i32, i64, u8 };

/// Bytes per element.
std::size_t size_of(DType dtype);

/// "f32", "bf16", ...
std::string_view name_of(DType dtype);

/// Inverse of name_of; throws ConfigError that lists the known names.
DType parse_dtype(std::string_view text);

/// The DType of a C++ type, for typed access to tensors.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};

}  // namespace annulus
