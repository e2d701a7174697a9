#include "kernels/softmax_cross_entropy.h"

#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/expect_error.h"
#include "tests/support/finite_difference.h"
#include "tests/support/random_values.h"
#include "tests/support/reference.h"

namespace annulus {
namespace {

using kernels::kIgnoredLabel;
using test::DeviceArray;
using test::to_double;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Case {
  std::size_t classes;
  std::vector<float> logits;
  std::vector<std::int32_t> labels;
  float smoothing = 0;
};

struct Results {
  std::vector<float> dlogits, statistics;
};

Results run(Device device, const Case& c) {
  const Stream stream(device);
  const Shape shape{c.labels.size(), c.classes};
  const DeviceArray<float> logits(stream, shape, c.logits), dlogits(stream, shape), statistics(stream, {3});
  const DeviceArray<std::int32_t> labels(stream, {c.labels.size()}, c.labels);
  kernels::softmax_cross_entropy(stream, logits, labels, c.smoothing, dlogits, statistics);
  const Results result{dlogits.values(), statistics.values()};
  // In place, and without gradient: the same numbers.
  const DeviceArray<float> loss_only(stream, {3});
  kernels::softmax_cross_entropy(stream, logits, labels, c.smoothing, {}, loss_only);
  test::expect_equal("statistics without gradient", loss_only.values(), result.statistics);
  kernels::softmax_cross_entropy(stream, logits, labels, c.smoothing, logits, statistics);
  test::expect_equal("dlogits in place", logits.values(), result.dlogits);
  test::expect_equal("statistics in place", statistics.values(), result.statistics);
  return result;
}

void check(const Case& c, double hits, double counted) {
  auto logits = to_double(c.logits);
  const auto loss = [&] {
    return test::reference::cross_entropy(c.classes, logits, c.labels, static_cast<double>(c.smoothing));
  };
  const auto gradient = test::central_differences(loss, logits);
  for (const Device device : test::test_devices()) {
    SCOPED_TRACE(fmt::format("[{}, {}] on {}", c.labels.size(), c.classes, device.to_string()));
    const Results result = run(device, c);
    // Every loss is at least as exact as log of a sum of f32 exponentials.
    const double slack = 1e-6 * static_cast<double>(c.labels.size() + 1);
    test::expect_close("statistics", result.statistics, std::vector<double>{loss(), hits, counted},
                       {4, slack});
    test::expect_close("dlogits", result.dlogits, gradient, {4, 1e-6});
  }
}

std::size_t count_hits(const Case& c) {
  std::size_t hits = 0;
  for (std::size_t row = 0; row < c.labels.size(); ++row) {
    std::size_t best = 0;
    for (std::size_t k = 1; k < c.classes; ++k)
      if (c.logits[row * c.classes + k] > c.logits[row * c.classes + best]) best = k;
    hits += best == static_cast<std::size_t>(c.labels[row]) ? 1 : 0;
  }
  return hits;
}

TEST(SoftmaxCrossEntropy, equals_the_reference_and_its_finite_differences) {
  for (const std::size_t batch : {0, 1, 2, 17})
    for (const std::size_t classes : {1, 2, 10, 31, 100})
      for (const float smoothing : {0.0f, 0.1f}) {
        Case c{classes, test::uniform(batch * classes, -4, 4, 1), std::vector<std::int32_t>(batch),
               smoothing};
        for (std::size_t i = 0; i < batch; ++i)
          c.labels[i] = static_cast<std::int32_t>((7 * i + 1) % classes);
        check(c, static_cast<double>(count_hits(c)), static_cast<double>(batch));
      }
}

TEST(SoftmaxCrossEntropy, ignores_padding) {
  const Case c{3, test::uniform(12, -2, 2, 1), {kIgnoredLabel, 1, kIgnoredLabel, 2}, 0.1f};
  Case kept{3, {}, {1, 2}, 0.1f};
  for (const std::size_t row : {1, 3})
    kept.logits.insert(kept.logits.end(), &c.logits[3 * row], &c.logits[3 * row] + 3);
  check(c, static_cast<double>(count_hits(kept)), 2);
  check({3, test::uniform(6, -2, 2, 1), {kIgnoredLabel, kIgnoredLabel}, 0}, 0, 0);
}

TEST(SoftmaxCrossEntropy, is_exact_for_large_logits) {
  for (const Device device : test::test_devices()) {
    SCOPED_TRACE(device.to_string());
    const Results result = run(device, {3, {10000, -10000, 0, -3e38f, 3e38f, 0}, {0, 1}});
    test::expect_equal("statistics", result.statistics, std::vector<float>{0, 2, 2});
    test::expect_equal("dlogits", result.dlogits, std::vector<float>(6, 0.0f));
    const Results wrong = run(device, {2, {10000, -10000}, {1}});
    test::expect_equal("statistics", wrong.statistics, std::vector<float>{20000, 0, 1});
    test::expect_equal("dlogits", wrong.dlogits, std::vector<float>{1, -1});
  }
}

TEST(SoftmaxCrossEntropy, knows_a_probability_of_zero) {
  for (const Device device : test::test_devices()) {
    SCOPED_TRACE(device.to_string());
    // A masked class other than the label costs nothing.
    const Results masked = run(device, {2, {1, -kInfinity}, {0}});
    test::expect_equal("statistics", masked.statistics, std::vector<float>{0, 1, 1});
    test::expect_equal("dlogits", masked.dlogits, std::vector<float>{0, 0});
  }
}

TEST(SoftmaxCrossEntropy, shows_nan) {
  for (const Device device : test::test_devices()) {
    SCOPED_TRACE(device.to_string());
    for (const std::vector<float>& logits :
         {std::vector<float>{0, kNan, 1}, {kNan, 0, 1}, {kInfinity, 0, 1}}) {
      const Results result = run(device, {3, logits, {2}});
      EXPECT_FALSE(std::isfinite(result.statistics[0]));
      EXPECT_EQ(result.statistics[2], 1);
    }
  }
}

TEST(SoftmaxCrossEntropy, counts_a_hit_for_the_first_largest_only) {
  for (const Device device : test::test_devices()) {
    SCOPED_TRACE(device.to_string());
    EXPECT_EQ(run(device, {3, {1, 5, 5}, {1}}).statistics[1], 1);
    EXPECT_EQ(run(device, {3, {1, 5, 5}, {2}}).statistics[1], 0);
    EXPECT_EQ(run(device, {4, {0, 0, 0, 0}, {0}}).statistics[1], 1);
  }
}

TEST(SoftmaxCrossEntropy, refuses_what_does_not_fit) {
  test::expect_error<DataError>(
      [] {
        run(Device::cpu(), {3, {1, 2, 3, 1, 2, 3}, {0, 3}});
      },
      {"label 3 of row 1 is not one of the 3 classes"});
  const Stream stream(Device::cpu());
  const DeviceArray<float> logits(stream, {2, 3}), statistics(stream, {3}), wrong(stream, {2});
  const DeviceArray<std::int32_t> labels(stream, {2}), too_many(stream, {3});
  test::expect_error<ShapeError>(
      [&] { kernels::softmax_cross_entropy(stream, logits, too_many, 0, {}, statistics); },
      {"labels must be i32 [2]"});
  test::expect_error<ShapeError>(
      [&] { kernels::softmax_cross_entropy(stream, logits, labels, 0, {}, wrong); },
      {"statistics must be f32 [3]"});
}

}  // namespace
}  // namespace annulus
