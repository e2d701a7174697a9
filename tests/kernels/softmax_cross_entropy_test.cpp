#include "kernels/softmax_cross_entropy.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/expect_error.h"
#include "tests/support/finite_difference.h"
#include "tests/support/random_values.h"
#include "tests/support/reference.h"
#include "tests/support/storages.h"

namespace annulus {
namespace {

using kernels::kIgnoredLabel;
using test::DeviceArray;
using test::RealArray;
using test::Storage;
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

Results run(const Storage& storage, const Case& c) {
  const auto& [device, dtype, skip] = storage;
  const Stream stream(device);
  const Shape shape{c.labels.size(), c.classes};
  const Buffer memory(device, kernels::softmax_cross_entropy_workspace_bytes(device, c.labels.size()));
  void* const workspace = memory.data();
  const RealArray logits(stream, shape, dtype, c.logits, skip), dlogits(stream, shape, dtype, skip);
  const DeviceArray<float> statistics(stream, {3});
  const DeviceArray<std::int32_t> labels(stream, {c.labels.size()}, c.labels);
  kernels::softmax_cross_entropy(stream, logits, labels, c.smoothing, workspace, dlogits, statistics);
  const Results result{dlogits.values(), statistics.values()};
  // In place, and without gradient: the same numbers.
  const DeviceArray<float> loss_only(stream, {3});
  kernels::softmax_cross_entropy(stream, logits, labels, c.smoothing, workspace, {}, loss_only);
  test::expect_equal("statistics without gradient", loss_only.values(), result.statistics);
  kernels::softmax_cross_entropy(stream, logits, labels, c.smoothing, workspace, logits, statistics);
  test::expect_equal("dlogits in place", logits.values(), result.dlogits);
  test::expect_equal("statistics in place", statistics.values(), result.statistics);
  return result;
}

// Rows that count whose first largest logit is the label.
double count_hits(const Case& c) {
  double hits = 0;
  for (std::size_t row = 0; row < c.labels.size(); ++row) {
    std::size_t best = 0;
    for (std::size_t k = 1; k < c.classes; ++k)
      if (c.logits[row * c.classes + k] > c.logits[row * c.classes + best]) best = k;
    hits += best == static_cast<std::size_t>(c.labels[row]) ? 1 : 0;
  }
  return hits;
}

void check(const Case& exact) {
  const auto counted =
      static_cast<double>(exact.labels.size()) -
      static_cast<double>(std::count(exact.labels.begin(), exact.labels.end(), kIgnoredLabel));
  for (const Storage& storage : test::storages()) {
    Case c = exact;
    c.logits = test::rounded_to(storage.dtype, c.logits);
    auto logits = to_double(c.logits);
    const auto loss = [&] {
      return test::reference::cross_entropy(c.classes, logits, c.labels, static_cast<double>(c.smoothing));
    };
    const auto gradient = test::central_differences(loss, logits);
    SCOPED_TRACE(fmt::format("[{}, {}], {}", c.labels.size(), c.classes, storage.describe()));
    const Results result = run(storage, c);
    // Every loss is at least as exact as log of a sum of f32 exponentials.
    const double slack = 1e-6 * static_cast<double>(c.labels.size() + 1);
    test::expect_close("statistics", result.statistics, std::vector<double>{loss(), count_hits(c), counted},
                       {4, slack});
    const bool rounded = storage.dtype != DType::f32;
    test::expect_close("dlogits", result.dlogits, gradient,
                       {rounded ? 1.0 : 4.0, 1e-6, test::epsilon_of(storage.dtype)});
  }
}

TEST(SoftmaxCrossEntropy, equals_the_reference_and_its_finite_differences) {
  for (const std::size_t batch : {0, 1, 2, 17})
    for (const std::size_t classes : {1, 2, 10, 31, 100})
      for (const float smoothing : {0.0f, 0.1f}) {
        Case c{classes, test::uniform(batch * classes, -4, 4, 1), std::vector<std::int32_t>(batch),
               smoothing};
        for (std::size_t i = 0; i < batch; ++i)
          c.labels[i] = static_cast<std::int32_t>((7 * i + 1) % classes);
        check(c);
      }
}

// More blocks than a warp has lanes, with statistics in every one: on CUDA a second pass adds them up.
TEST(SoftmaxCrossEntropy, counts_every_row_of_a_large_batch) {
  constexpr std::size_t kBatch = 601;
  Case c{2, test::uniform(2 * kBatch, -4, 4, 1), std::vector<std::int32_t>(kBatch)};
  for (std::size_t i = 0; i < kBatch; ++i) c.labels[i] = static_cast<std::int32_t>(i % 2);
  check(c);
}

TEST(SoftmaxCrossEntropy, ignores_padding) {
  check({3, test::uniform(12, -2, 2, 1), {kIgnoredLabel, 1, kIgnoredLabel, 2}, 0.1f});
  check({3, test::uniform(6, -2, 2, 1), {kIgnoredLabel, kIgnoredLabel}, 0});
}

TEST(SoftmaxCrossEntropy, is_exact_for_large_logits) {
  for (const Storage& storage : test::storages()) {
    SCOPED_TRACE(storage.describe());
    const Results result = run(storage, {3, {8192, -8192, 0, -3e38f, 3e38f, 0}, {0, 1}});
    test::expect_equal("statistics", result.statistics, std::vector<float>{0, 2, 2});
    test::expect_equal("dlogits", result.dlogits, std::vector<float>(6, 0.0f));
    const Results wrong = run(storage, {2, {8192, -8192}, {1}});
    test::expect_equal("statistics", wrong.statistics, std::vector<float>{16384, 0, 1});
    test::expect_equal("dlogits", wrong.dlogits, std::vector<float>{1, -1});
  }
}

TEST(SoftmaxCrossEntropy, knows_a_probability_of_zero) {
  for (const Storage& storage : test::storages()) {
    SCOPED_TRACE(storage.describe());
    // A masked class other than the label costs nothing.
    const Results masked = run(storage, {2, {1, -kInfinity}, {0}});
    test::expect_equal("statistics", masked.statistics, std::vector<float>{0, 1, 1});
    test::expect_equal("dlogits", masked.dlogits, std::vector<float>{0, 0});
  }
}

TEST(SoftmaxCrossEntropy, shows_nan) {
  for (const Storage& storage : test::storages()) {
    SCOPED_TRACE(storage.describe());
    for (const std::vector<float>& logits :
         {std::vector<float>{0, kNan, 1}, {kNan, 0, 1}, {kInfinity, 0, 1}}) {
      const Results result = run(storage, {3, logits, {2}});
      EXPECT_FALSE(std::isfinite(result.statistics[0]));
      EXPECT_EQ(result.statistics[2], 1);
    }
  }
}

TEST(SoftmaxCrossEntropy, counts_a_hit_for_the_first_largest_only) {
  for (const Storage& storage : test::storages()) {
    SCOPED_TRACE(storage.describe());
    EXPECT_EQ(run(storage, {3, {1, 5, 5}, {1}}).statistics[1], 1);
    EXPECT_EQ(run(storage, {3, {1, 5, 5}, {2}}).statistics[1], 0);
    EXPECT_EQ(run(storage, {4, {0, 0, 0, 0}, {0}}).statistics[1], 1);
  }
}

TEST(SoftmaxCrossEntropy, refuses_what_does_not_fit) {
  test::expect_error<DataError>(
      [] {
        run({Device::cpu()}, {3, {1, 2, 3, 1, 2, 3}, {0, 3}});
      },
      {"label 3 of row 1 is not one of the 3 classes"});
  const Stream stream(Device::cpu());
  const DeviceArray<float> logits(stream, {2, 3}), statistics(stream, {3}), wrong(stream, {2});
  const DeviceArray<std::int32_t> labels(stream, {2}), too_many(stream, {3});
  test::expect_error<ShapeError>(
      [&] { kernels::softmax_cross_entropy(stream, logits, too_many, 0, nullptr, {}, statistics); },
      {"labels must be i32 [2]"});
  test::expect_error<ShapeError>(
      [&] { kernels::softmax_cross_entropy(stream, logits, labels, 0, nullptr, {}, wrong); },
      {"statistics must be f32 [3]"});
  const RealArray rounded(stream, {2, 3}, DType::bf16);
  test::expect_error<ShapeError>(
      [&] { kernels::softmax_cross_entropy(stream, rounded, labels, 0, nullptr, {}, statistics); },
      {"softmax_cross_entropy: logits is bf16, which needs a CUDA device"});
}

}  // namespace
}  // namespace annulus
