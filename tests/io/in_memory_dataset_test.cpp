#include "io/in_memory_dataset.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

DatasetInfo info(std::size_t size) {
  return {.name = "mine",
          .size = size,
          .height = 1,
          .width = 2,
          .channels = 2,
          .classes = 3,
          .mean = {},
          .stddev = {}};
}

TEST(InMemoryDataset, HandsOutWhatItWasGiven) {
  const InMemoryDataset dataset(info(2), {1, 2, 3, 4, 5, 6, 7, 8}, {2, 0});
  std::uint8_t image[4];
  dataset.read(1, image);
  EXPECT_EQ(image[0], 5);
  EXPECT_EQ(image[3], 8);
  EXPECT_EQ(dataset.label(0), 2);
  EXPECT_EQ(dataset.image_bytes(), 4u);
}

TEST(InMemoryDataset, RefusesWhatDoesNotFit) {
  test::expect_error<DataError>(
      [] {
        InMemoryDataset(info(2), std::vector<std::uint8_t>(7), {0, 0});
      },
      {"mine", "7 bytes", "2 images of 1 x 2 x 2"});
  test::expect_error<DataError>([] { InMemoryDataset(info(2), std::vector<std::uint8_t>(8), {0}); },
                                {"mine", "2 images", "1 labels"});
  test::expect_error<DataError>([] { InMemoryDataset(info(0), {}, {}); }, {"mine", "0 samples"});
}

TEST(ChannelStatistics, AreExactPerChannel) {
  // Two channels: 0 and 255 in equal parts, and a constant.
  const std::vector<std::uint8_t> pixels = {0, 51, 255, 51, 255, 51, 0, 51};
  const ChannelStatistics statistics = channel_statistics(pixels, 2);
  EXPECT_EQ(statistics.mean, (std::vector<float>{0.5f, 0.2f}));
  EXPECT_EQ(statistics.stddev, (std::vector<float>{0.5f, 1.0f}));
}

TEST(CheckLabels, FindsTheFirstOutOfRange) {
  EXPECT_EQ(check_labels(std::vector<std::int64_t>{0, 2, 1}, 3, "file", "fix it"),
            (std::vector<std::int32_t>{0, 2, 1}));
  for (const std::int64_t label :
       {std::int64_t{-1}, std::int64_t{3}, std::numeric_limits<std::int64_t>::max(),
        std::numeric_limits<std::int64_t>::min()})
    test::expect_error<DataError>(
        [&] {
          (void)check_labels(std::vector<std::int64_t>{0, label}, 3, "file", "fix it");
        },
        {"file", std::to_string(label), "sample 1", "0 to 2", "fix it"});
}

TEST(SaturatingProduct, StopsAtTheLargest) {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(saturating_product(std::vector<std::size_t>{}), 1u);
  EXPECT_EQ(saturating_product(std::vector<std::size_t>{3, 5, 7}), 105u);
  EXPECT_EQ(saturating_product(std::vector<std::size_t>{kMost, 2}), kMost);
  EXPECT_EQ(saturating_product(std::vector<std::size_t>{std::size_t{1} << 32, std::size_t{1} << 32}), kMost);
}

}  // namespace
}  // namespace annulus
