#include "io/evaluation_loader.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "core/base/error.h"
#include "io/in_memory_dataset.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

InMemoryDataset numbered(std::size_t size) {
  std::vector<std::uint8_t> images(2 * size);
  std::iota(images.begin(), images.end(), std::uint8_t{0});
  std::vector<std::int32_t> labels(size);
  for (std::size_t i = 0; i < size; ++i) labels[i] = static_cast<std::int32_t>(i % 3);
  return InMemoryDataset({.name = "numbered",
                          .size = size,
                          .height = 2,
                          .width = 1,
                          .channels = 1,
                          .classes = 3,
                          .mean = {0},
                          .stddev = {1}},
                         std::move(images), std::move(labels));
}

TEST(EvaluationLoader, ReadsEverySampleOnceAtAnyWorldSize) {
  for (const std::size_t size : {1u, 2u, 10u, 101u})
    for (const int world_size : {1, 2, 3, 4, 8})
      for (const std::size_t batch : {1u, 7u, 1000u}) {
        const InMemoryDataset dataset = numbered(size);
        std::size_t next = 0;
        for (int rank = 0; rank < world_size; ++rank) {
          const EvaluationLoader loader(dataset, rank, world_size, batch, Device::cpu());
          for (std::size_t b = 0; b < loader.batches(); ++b) {
            const MicroBatch samples = loader.read(b);
            ASSERT_GT(samples.samples(), 0u);
            ASSERT_LE(samples.samples(), batch);
            for (std::size_t i = 0; i < samples.samples(); ++i, ++next) {
              EXPECT_EQ(samples.sample_index.as<std::int64_t>()[i], static_cast<std::int64_t>(next));
              EXPECT_EQ(samples.labels.as<std::int32_t>()[i], static_cast<int>(next % 3));
              EXPECT_EQ(samples.images.as<std::uint8_t>()[2 * i + 1],
                        static_cast<std::uint8_t>(2 * next + 1));
            }
          }
        }
        EXPECT_EQ(next, size);
      }
}

TEST(EvaluationLoader, RefusesEmptyBatches) {
  const InMemoryDataset dataset = numbered(3);
  test::expect_error<ConfigError>([&] { EvaluationLoader(dataset, 0, 1, 0, Device::cpu()); }, {"at least 1"});
}

}  // namespace
}  // namespace annulus
