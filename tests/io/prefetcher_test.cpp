#include "io/prefetcher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

/// Three bytes a sample, made of its index. Throws or dawdles on request.
class TinyDataset final : public Dataset {
 public:
  explicit TinyDataset(std::size_t size)
      : Dataset({.name = "tiny",
                 .size = size,
                 .height = 1,
                 .width = 3,
                 .channels = 1,
                 .classes = 10,
                 .mean = {0},
                 .stddev = {1}}) {}

  void read(std::size_t index, std::uint8_t* image) const override {
    if (static_cast<std::int64_t>(index) == bad_sample) throw std::runtime_error("sample is bad");
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    for (std::size_t i = 0; i < 3; ++i) image[i] = static_cast<std::uint8_t>(index >> (8 * i));
    ++reads;
  }
  std::int32_t label(std::size_t index) const override { return static_cast<std::int32_t>(index % 10); }

  std::int64_t bad_sample = -1;
  std::chrono::milliseconds delay{0};
  mutable std::atomic<std::size_t> reads{0};
};

/// Checks that one step's micro-batches are what the sampler says.
void expect_step(const Sampler& sampler, int rank, int world_size, Cursor cursor,
                 std::span<const MicroBatch> micro_batches) {
  std::vector<std::uint32_t> order;
  sampler.shuffle(cursor.epoch, order);
  const SampleRange owned = rank_micro_batches(sampler.options().micro_batches, rank, world_size);
  ASSERT_EQ(micro_batches.size(), owned.size());
  for (std::size_t i = 0; i < owned.size(); ++i) {
    const MicroBatch& batch = micro_batches[i];
    const SampleRange positions = sampler.micro_batch(cursor.step, owned.begin + i);
    ASSERT_EQ(batch.samples(), positions.size());
    EXPECT_EQ(batch.images.shape(), (Shape{positions.size(), 1, 3, 1}));
    EXPECT_EQ(batch.first_sample, positions.begin - sampler.batch(cursor.step).begin);
    for (std::size_t s = 0; s < batch.samples(); ++s) {
      const std::uint32_t index = order[positions.begin + s];
      EXPECT_EQ(batch.sample_index.as<std::int64_t>()[s], index);
      EXPECT_EQ(batch.labels.as<std::int32_t>()[s], static_cast<int>(index % 10));
      EXPECT_EQ(batch.images.as<std::uint8_t>()[3 * s], index & 0xff);
      EXPECT_EQ(batch.images.as<std::uint8_t>()[3 * s + 1], index >> 8);
    }
  }
}

TEST(Prefetcher, HandsOutWhatTheSamplerSays) {
  const TinyDataset dataset(1003);
  const Sampler sampler({.dataset_size = 1003, .batch_size = 64, .micro_batches = 8, .seed = 5});
  for (const int world_size : {1, 2, 8})
    for (int rank = 0; rank < world_size; ++rank) {
      Prefetcher prefetcher(dataset, sampler, rank, world_size, {}, Device::cpu());
      Cursor cursor;
      for (std::size_t i = 0; i < 3 * sampler.steps_per_epoch(); ++i) {
        EXPECT_EQ(prefetcher.cursor(), cursor);
        expect_step(sampler, rank, world_size, cursor, prefetcher.next());
        cursor = sampler.next(cursor);
      }
      EXPECT_EQ(cursor, (Cursor{3, 0}));
    }
}

TEST(Prefetcher, ResumesAtACursorAtAnyWorldSize) {
  const TinyDataset dataset(250);
  const Sampler sampler({.dataset_size = 250, .batch_size = 40, .micro_batches = 4, .seed = 5});
  Prefetcher whole(dataset, sampler, 0, 1, {}, Device::cpu());
  for (int i = 0; i < 10; ++i) (void)whole.next();
  const Cursor cursor = whole.cursor();
  EXPECT_EQ(cursor, (Cursor{1, 3}));
  Prefetcher first(dataset, sampler, 0, 2, cursor, Device::cpu());
  Prefetcher second(dataset, sampler, 1, 2, cursor, Device::cpu());
  for (int i = 0; i < 20; ++i) {
    std::vector<std::int64_t> expected, found;
    const auto append = [](std::span<const MicroBatch> micro_batches, std::vector<std::int64_t>& indices) {
      for (const MicroBatch& batch : micro_batches)
        indices.insert(indices.end(), batch.sample_index.as<std::int64_t>(),
                       batch.sample_index.as<std::int64_t>() + batch.samples());
    };
    append(whole.next(), expected);
    append(first.next(), found);
    append(second.next(), found);
    EXPECT_EQ(found, expected);
  }
}

TEST(Prefetcher, TakesTheEndOfAnEpochAsTheStartOfTheNext) {
  const TinyDataset dataset(100);
  const Sampler sampler({.dataset_size = 100, .batch_size = 10});
  Prefetcher prefetcher(dataset, sampler, 0, 1, {4, 10}, Device::cpu());
  EXPECT_EQ(prefetcher.cursor(), (Cursor{5, 0}));
  expect_step(sampler, 0, 1, {5, 0}, prefetcher.next());
  test::expect_error<ConfigError>(
      [&] {
        Prefetcher(dataset, sampler, 0, 1, {4, 11}, Device::cpu());
      },
      {"step 11", "10 steps"});
}

TEST(Prefetcher, KeepsItsBatchUntilTheNextCall) {
  const TinyDataset dataset(100);
  const Sampler sampler({.dataset_size = 100, .batch_size = 10});
  Prefetcher prefetcher(dataset, sampler, 0, 1, {}, Device::cpu());
  for (int i = 0; i < 5; ++i) {
    const std::span<const MicroBatch> micro_batches = prefetcher.next();
    // Time for the thread to run as far ahead as it may.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    expect_step(sampler, 0, 1, {0, static_cast<std::size_t>(i)}, micro_batches);
  }
}

TEST(Prefetcher, RunsAheadButNotFar) {
  const TinyDataset dataset(1000);
  const Sampler sampler({.dataset_size = 1000, .batch_size = 10});
  Prefetcher prefetcher(dataset, sampler, 0, 1, {}, Device::cpu());
  (void)prefetcher.next();
  while (dataset.reads < 30) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(dataset.reads, 30u);  // the step in hand and two more
}

TEST(Prefetcher, AllocatesNothingInSteadyState) {
  if (!test::kCountsAllocations) GTEST_SKIP() << "the sanitizer has its own allocator";
  const TinyDataset dataset(1003);
  const Sampler sampler({.dataset_size = 1003, .batch_size = 64, .micro_batches = 8});
  Prefetcher prefetcher(dataset, sampler, 0, 2, {}, Device::cpu());
  (void)prefetcher.next();
  const std::size_t before = test::allocation_count;
  for (std::size_t i = 0; i < 4 * sampler.steps_per_epoch(); ++i) (void)prefetcher.next();
  EXPECT_EQ(test::allocation_count, before);
  EXPECT_GT(before, 0u);
}

TEST(Prefetcher, RethrowsWhatTheDatasetThrows) {
  TinyDataset dataset(100);
  const Sampler sampler({.dataset_size = 100, .batch_size = 10});
  std::vector<std::uint32_t> order;
  sampler.shuffle(0, order);
  dataset.bad_sample = order[35];
  Prefetcher prefetcher(dataset, sampler, 0, 1, {}, Device::cpu());
  for (std::size_t step = 0; step < 3; ++step) expect_step(sampler, 0, 1, {0, step}, prefetcher.next());
  for (int attempt = 0; attempt < 2; ++attempt)
    test::expect_error<std::runtime_error>([&] { (void)prefetcher.next(); }, {"sample is bad"});
  EXPECT_EQ(prefetcher.cursor(), (Cursor{0, 3}));
}

TEST(Prefetcher, StopsBetweenTwoSamples) {
  TinyDataset dataset(100000);
  dataset.delay = std::chrono::milliseconds(1);
  const Sampler sampler({.dataset_size = 100000, .batch_size = 100000});
  {
    Prefetcher prefetcher(dataset, sampler, 0, 1, {}, Device::cpu());
    while (dataset.reads == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_LT(dataset.reads, 100000u);
}

TEST(Prefetcher, StopsBeforeAnybodyAsks) {
  const TinyDataset dataset(100);
  const Sampler sampler({.dataset_size = 100, .batch_size = 10});
  for (int i = 0; i < 50; ++i) Prefetcher(dataset, sampler, 0, 1, {}, Device::cpu());
}

TEST(Prefetcher, RefusesAWorldSizeThatDoesNotFit) {
  const TinyDataset dataset(100);
  const Sampler sampler({.dataset_size = 100, .batch_size = 16, .micro_batches = 8});
  test::expect_error<ConfigError>([&] { Prefetcher(dataset, sampler, 0, 3, {}, Device::cpu()); },
                                  {"1, 2, 4, 8"});
}

}  // namespace
}  // namespace annulus
