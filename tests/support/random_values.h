// Deterministic inputs for tests.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/philox.h"

namespace annulus::test {

/// Integers in [-range, range]. Products and sums of small ones are exact in f32, whatever the order.
inline std::vector<float> integers(std::size_t count, std::uint32_t range, std::uint64_t seed) {
  const Philox random(seed, RandomPurpose::synthetic);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(random.below(i, 2 * range + 1)) - static_cast<float>(range);
  return values;
}

/// Uniform in [low, high).
inline std::vector<float> uniform(std::size_t count, float low, float high, std::uint64_t seed) {
  const Philox random(seed, RandomPurpose::synthetic);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = low + (high - low) * random.uniform(i);
  return values;
}

inline std::vector<double> to_double(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

}  // namespace annulus::test
