#include "core/base/precision.h"

#include <array>

#include "core/base/error.h"

namespace annulus {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"f32", "tf32", "bf16"};

}  // namespace

std::string_view name_of(Precision precision) { return kNames.at(static_cast<std::size_t>(precision)); }

Precision parse_precision(std::string_view text) {
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == text) return static_cast<Precision>(i);
  fail<ConfigError>("\"{}\" is not a precision; known are f32, tf32 and bf16", text);
}

}  // namespace annulus
