#include "io/synthetic.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "core/base/error.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

using Image = std::vector<std::uint8_t>;

DatasetInfo info(std::size_t samples, std::size_t height, std::size_t width, std::size_t channels,
                 std::size_t classes) {
  return {.name = "synthetic",
          .size = samples,
          .height = height,
          .width = width,
          .channels = channels,
          .classes = classes,
          .mean = {},
          .stddev = {}};
}

Image read(const Dataset& dataset, std::size_t index) {
  Image image(dataset.image_bytes());
  dataset.read(index, image.data());
  return image;
}

double distance(const Image& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

TEST(Synthetic, IsTheSameEverywhere) {
  const SyntheticDataset first(info(100, 5, 7, 3, 10), 1, Split::train);
  const SyntheticDataset second(info(100, 5, 7, 3, 10), 1, Split::train);
  for (std::size_t i = 100; i-- > 0;) {
    EXPECT_EQ(read(first, i), read(second, i));
    EXPECT_EQ(first.label(i), static_cast<int>(i % 10));
  }
  // Runs are reproduced from their seed, so these bytes may not change.
  const Image image = read(first, 42);
  EXPECT_EQ(Image(image.begin(), image.begin() + 6), (Image{113, 118, 52, 118, 84, 61}));
}

TEST(Synthetic, SeedSplitAndSampleMatter) {
  const DatasetInfo shape = info(100, 5, 7, 3, 10);
  const SyntheticDataset dataset(shape, 1, Split::train);
  EXPECT_NE(read(dataset, 0), read(dataset, 10));  // of the same class
  EXPECT_NE(read(dataset, 0), read(SyntheticDataset(shape, 1, Split::test), 0));
  EXPECT_NE(read(dataset, 0), read(SyntheticDataset(shape, 2, Split::train), 0));
}

TEST(Synthetic, CanBeLearned) {
  // The mean image of each class over the training split classifies the test split.
  const SyntheticDataset train(info(500, 12, 12, 1, 10), 3, Split::train);
  const SyntheticDataset test(info(100, 12, 12, 1, 10), 3, Split::test);
  std::vector<std::vector<double>> means(10, std::vector<double>(144));
  for (std::size_t i = 0; i < 500; ++i) {
    const Image image = read(train, i);
    for (std::size_t p = 0; p < 144; ++p)
      means[static_cast<std::size_t>(train.label(i))][p] += image[p] / 50.0;
  }
  int hits = 0;
  for (std::size_t i = 0; i < 100; ++i) {
    const Image image = read(test, i);
    int best = 0;
    for (int k = 1; k < 10; ++k)
      if (distance(image, means[static_cast<std::size_t>(k)]) <
          distance(image, means[static_cast<std::size_t>(best)]))
        best = k;
    hits += best == test.label(i);
  }
  EXPECT_GE(hits, 99);
}

TEST(Synthetic, HasTheStatisticsItClaims) {
  // Many classes, so that the patterns average out.
  const SyntheticDataset dataset(info(2000, 8, 8, 2, 2000), 5, Split::train);
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < 2000; ++i)
    for (const double pixel : read(dataset, i)) sum += pixel / 255, squares += pixel / 255 * pixel / 255;
  const double count = 2000 * 128, mean = sum / count;
  ASSERT_EQ(dataset.info().mean.size(), 2u);
  EXPECT_NEAR(dataset.info().mean[0], mean, 0.005);
  EXPECT_NEAR(dataset.info().stddev[1], std::sqrt(squares / count - mean * mean), 0.005);
}

TEST(Synthetic, TakesAnyShape) {
  for (const auto& [height, width, channels, classes] :
       {std::array<std::size_t, 4>{1, 1, 1, 1}, {1, 9, 4, 3}, {3, 2, 1, 1000}, {33, 65, 5, 7}}) {
    const SyntheticDataset dataset(info(3, height, width, channels, classes), 1, Split::test);
    EXPECT_EQ(read(dataset, 2).size(), height * width * channels);
    EXPECT_LT(static_cast<std::size_t>(dataset.label(2)), classes);
  }
  test::expect_error<ConfigError>([] { SyntheticDataset(info(3, 0, 2, 1, 10), 1, Split::train); },
                                  {"synthetic", "0 x 2 x 1", "at least 1"});
}

}  // namespace
}  // namespace annulus
