// Gradients against central finite differences.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace annulus::test {

/// d f / d values[i] for every i, by (f(x + h) - f(x - h)) / 2h. In double with h = 1e-6, rounding and
/// truncation leave an error near 1e-9 for functions of size 1.
template <class Function>
std::vector<double> central_differences(const Function& function, std::span<double> values, double h = 1e-6) {
  std::vector<double> gradient(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    values[i] = value + h;
    const double above = function();
    values[i] = value - h;
    const double below = function();
    values[i] = value;
    gradient[i] = (above - below) / (2 * h);
  }
  return gradient;
}

/// Expects f32 values to be within `relative` of the largest expected one, or of 0.1 where all are smaller:
/// a gradient that is zero only because terms of size 1 cancel is not better than their rounding. Names the
/// worst.
inline void expect_close(std::span<const float> found, std::span<const double> expected, double relative,
                         const std::string& name) {
  ASSERT_EQ(found.size(), expected.size()) << name;
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  std::size_t worst = 0;
  const auto error = [&](std::size_t i) { return std::abs(static_cast<double>(found[i]) - expected[i]); };
  for (std::size_t i = 0; i < found.size(); ++i)
    if (!(error(i) <= error(worst))) worst = i;  // NaN counts as worst
  if (found.empty()) return;
  EXPECT_LE(error(worst), relative * std::max(largest, 0.1))
      << name << "[" << worst << "]: found " << found[worst] << ", expected " << expected[worst];
}

}  // namespace annulus::test
