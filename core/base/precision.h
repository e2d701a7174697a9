// In which number formats a model computes.
#pragma once

#include <string_view>

#include "core/base/dtype.h"

namespace annulus {

/// Master weights, gradients of parameters, optimizer states and sums are f32 in all of them.
enum class Precision {
  f32,   ///< f32 throughout
  tf32,  ///< f32 in memory; tensor cores multiply operands that are rounded to tf32 (10 bits of mantissa)
  bf16   ///< activations and their gradients in bf16, and a bf16 copy of the weights for tensor cores
};

/// "f32", "tf32" or "bf16".
std::string_view name_of(Precision precision);

/// Inverse of name_of; throws ConfigError that lists the known names.
Precision parse_precision(std::string_view text);

/// The dtype of activations, of their gradients, and of the weights that matrix products and convolutions
/// read.
constexpr DType activation_dtype(Precision precision) {
  return precision == Precision::bf16 ? DType::bf16 : DType::f32;
}

}  // namespace annulus
