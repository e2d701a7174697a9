// Comparisons that say what differs: name, index and both values of the first few elements.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <string_view>
#include <vector>

namespace annulus::test {

/// How far a result may lie from its reference: |actual - expected| <= epsilons * epsilon * |expected| +
/// slack. The slack is for sums whose terms cancel; say at the call what it is made of.
struct Tolerance {
  double epsilons = 4;
  double slack = 0;
  double epsilon = 0x1p-23;  ///< of the result's format, f32 if not said
};

/// No tolerance: for results that f32 holds exactly, such as sums of small integers.
inline constexpr Tolerance kExact{0, 0};

inline bool is_close(double actual, double expected, Tolerance tolerance) {
  if (std::isnan(expected)) return std::isnan(actual);
  if (std::isinf(expected)) return actual == expected;
  const double allowed = tolerance.epsilons * tolerance.epsilon * std::abs(expected) + tolerance.slack;
  return std::abs(actual - expected) <= allowed;
}

/// Expects every element of `actual` close to `expected`; both may be of any arithmetic type.
template <class Actual, class Expected>
void expect_close(std::string_view name, const std::vector<Actual>& actual,
                  const std::vector<Expected>& expected, Tolerance tolerance) {
  ASSERT_EQ(actual.size(), expected.size()) << name;
  std::size_t different = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double a = static_cast<double>(actual[i]), e = static_cast<double>(expected[i]);
    if (is_close(a, e, tolerance)) continue;
    if (++different > 5) continue;
    ADD_FAILURE() << name << "[" << i << "] is " << a << ", expected " << e << ", difference " << a - e;
  }
  EXPECT_LE(different, 5u) << name << ": " << different << " of " << actual.size() << " elements differ";
}

/// Expects equal values, NaN equal to NaN.
template <class Actual, class Expected>
void expect_equal(std::string_view name, const std::vector<Actual>& actual,
                  const std::vector<Expected>& expected) {
  expect_close(name, actual, expected, kExact);
}

}  // namespace annulus::test
