#include "io/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "core/base/error.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

using Order = std::vector<std::uint32_t>;

Order order_of(const Sampler& sampler, std::uint64_t epoch) {
  Order order;
  sampler.shuffle(epoch, order);
  return order;
}

/// The samples of an epoch as `world_size` ranks train them: step by step, rank by rank.
Order trained(const Sampler& sampler, std::uint64_t epoch, int world_size) {
  const Order order = order_of(sampler, epoch);
  Order samples;
  for (std::size_t step = 0; step < sampler.steps_per_epoch(); ++step)
    for (int rank = 0; rank < world_size; ++rank) {
      const SampleRange owned = rank_micro_batches(sampler.options().micro_batches, rank, world_size);
      for (std::size_t i = owned.begin; i < owned.end; ++i) {
        const SampleRange positions = sampler.micro_batch(step, i);
        EXPECT_LE(positions.size(), sampler.max_micro_batch_size());
        samples.insert(samples.end(), order.begin() + static_cast<std::ptrdiff_t>(positions.begin),
                       order.begin() + static_cast<std::ptrdiff_t>(positions.end));
      }
    }
  return samples;
}

Order sorted(Order order) {
  std::sort(order.begin(), order.end());
  return order;
}

Order ascending(std::size_t size) {
  Order order(size);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

TEST(Sampler, VisitsEverySampleOnceInAnOrderThatRanksDoNotChange) {
  for (const std::size_t size : {1u, 7u, 64u, 65u, 1000u})
    for (const std::size_t batch : {8u, 64u, 2000u}) {
      const Sampler sampler({.dataset_size = size, .batch_size = batch, .micro_batches = 8, .seed = 3});
      const Order one = trained(sampler, 2, 1);
      EXPECT_EQ(one, order_of(sampler, 2));
      EXPECT_EQ(sorted(one), ascending(size));
      for (const int world_size : {2, 4, 8}) EXPECT_EQ(trained(sampler, 2, world_size), one);
    }
}

TEST(Sampler, CutsTheLastBatchLikeAnyOther) {
  const Sampler sampler({.dataset_size = 1003, .batch_size = 100, .micro_batches = 4});
  EXPECT_EQ(sampler.steps_per_epoch(), 11u);
  EXPECT_EQ(sampler.max_micro_batch_size(), 25u);
  EXPECT_EQ(sampler.batch(3), (SampleRange{300, 400}));
  EXPECT_EQ(sampler.micro_batch(3, 2), (SampleRange{350, 375}));
  // Three samples in four micro-batches: the first is empty.
  EXPECT_EQ(sampler.batch(10), (SampleRange{1000, 1003}));
  EXPECT_EQ(sampler.micro_batch(10, 0), (SampleRange{1000, 1000}));
  EXPECT_EQ(sampler.micro_batch(10, 1), (SampleRange{1000, 1001}));
  EXPECT_EQ(sampler.micro_batch(10, 2), (SampleRange{1001, 1002}));
  EXPECT_EQ(sampler.micro_batch(10, 3), (SampleRange{1002, 1003}));
}

TEST(Sampler, DropsTheLastBatchIfAsked) {
  const Sampler sampler(
      {.dataset_size = 1003, .batch_size = 100, .micro_batches = 4, .seed = 0, .drop_last = true});
  EXPECT_EQ(sampler.steps_per_epoch(), 10u);
  const Order order = order_of(sampler, 0);
  EXPECT_EQ(trained(sampler, 0, 2), Order(order.begin(), order.begin() + 1000));
  // Which samples are left out changes from epoch to epoch.
  const Order next = order_of(sampler, 1);
  EXPECT_NE(sorted(Order(order.end() - 3, order.end())), sorted(Order(next.end() - 3, next.end())));
  const Sampler exact(
      {.dataset_size = 1000, .batch_size = 100, .micro_batches = 4, .seed = 0, .drop_last = true});
  EXPECT_EQ(exact.steps_per_epoch(), 10u);
}

TEST(Sampler, IsKeyedBySeedAndEpochOnly) {
  const Sampler sampler({.dataset_size = 1000, .batch_size = 100, .seed = 1});
  EXPECT_EQ(order_of(sampler, 5), order_of(sampler, 5));
  EXPECT_NE(order_of(sampler, 5), order_of(sampler, 6));
  EXPECT_NE(order_of(sampler, 5), order_of(Sampler({.dataset_size = 1000, .batch_size = 100, .seed = 2}), 5));
  EXPECT_EQ(order_of(sampler, 5),
            order_of(Sampler({.dataset_size = 1000, .batch_size = 8, .micro_batches = 8, .seed = 1}), 5));
  // Checkpoints resume with this order, so it may not change.
  EXPECT_EQ(order_of(Sampler({.dataset_size = 10, .batch_size = 1, .seed = 1}), 0),
            (Order{9, 2, 8, 1, 7, 4, 3, 0, 5, 6}));
}

TEST(Sampler, ShufflesEvenly) {
  // How often each of 5 samples comes at each of 5 positions, over many epochs.
  const Sampler sampler({.dataset_size = 5, .batch_size = 5, .seed = 11});
  constexpr int kEpochs = 5000;
  int counts[5][5] = {};
  Order order;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.shuffle(static_cast<std::uint64_t>(epoch), order);
    for (std::size_t position = 0; position < 5; ++position) ++counts[position][order[position]];
  }
  for (const auto& row : counts)
    for (const int count : row) EXPECT_NEAR(count, kEpochs / 5, 6 * 28.3);  // six standard deviations
}

TEST(Sampler, StepsFromEpochToEpoch) {
  const Sampler sampler({.dataset_size = 250, .batch_size = 100});
  EXPECT_EQ(sampler.next({0, 0}), (Cursor{0, 1}));
  EXPECT_EQ(sampler.next({0, 1}), (Cursor{0, 2}));
  EXPECT_EQ(sampler.next({0, 2}), (Cursor{1, 0}));
}

TEST(Sampler, HandlesADatasetSmallerThanABatch) {
  const Sampler sampler({.dataset_size = 10, .batch_size = 4096, .micro_batches = 4});
  EXPECT_EQ(sampler.steps_per_epoch(), 1u);
  EXPECT_EQ(sampler.max_micro_batch_size(), 3u);
}

TEST(Sampler, SaysWhichSizesWouldDo) {
  const auto make = [](const SamplerOptions& options) { return [options] { (void)Sampler(options); }; };
  test::expect_error<ConfigError>(
      make({.dataset_size = 1000, .batch_size = 100, .micro_batches = 8}),
      {"100", "8", "use a batch size of 96 or 104", "divides 100: 1, 2, 4, 5, 10"});
  test::expect_error<ConfigError>(make({.dataset_size = 1000, .batch_size = 3, .micro_batches = 8}),
                                  {"batch size of 8", "1, 3"});
  test::expect_error<ConfigError>(make({.dataset_size = 1000, .batch_size = 0}), {"batch size of 0", "1 to"});
  test::expect_error<ConfigError>(make({.dataset_size = 1000, .batch_size = 8, .micro_batches = 0}),
                                  {"0 micro-batches"});
  test::expect_error<ConfigError>(make({.dataset_size = 0, .batch_size = 8}), {"0 samples"});
  test::expect_error<ConfigError>(make({.dataset_size = std::size_t{1} << 32, .batch_size = 8}),
                                  {"4294967296 samples", "4294967295"});
  test::expect_error<ConfigError>(
      make({.dataset_size = 10, .batch_size = 11, .micro_batches = 1, .seed = 0, .drop_last = true}),
      {"11", "10 samples", "at most 10"});
}

TEST(WorldSize, FitsIfEveryRankOwnsAPowerOfTwo) {
  using Sizes = std::vector<std::size_t>;
  EXPECT_EQ(fitting_world_sizes(1), (Sizes{1}));
  EXPECT_EQ(fitting_world_sizes(3), (Sizes{1, 3}));
  EXPECT_EQ(fitting_world_sizes(6), (Sizes{1, 3, 6}));
  EXPECT_EQ(fitting_world_sizes(8), (Sizes{1, 2, 4, 8}));
  EXPECT_EQ(fitting_world_sizes(12), (Sizes{1, 3, 6, 12}));
  for (std::size_t micro_batches = 1; micro_batches <= 24; ++micro_batches) {
    const Sizes sizes = fitting_world_sizes(micro_batches);
    for (std::size_t n = 1; n <= 25; ++n) {
      const bool listed = std::find(sizes.begin(), sizes.end(), n) != sizes.end();
      if (listed)
        EXPECT_NO_THROW(check_world_size(micro_batches, static_cast<int>(n)));
      else
        EXPECT_THROW(check_world_size(micro_batches, static_cast<int>(n)), ConfigError);
    }
  }
  test::expect_error<ConfigError>([] { check_world_size(8, 3); },
                                  {"8 micro-batches", "3 ranks", "1, 2, 4, 8"});
  test::expect_error<ConfigError>([] { check_world_size(8, 0); }, {"0 ranks"});
}

TEST(EvaluationShare, CoversEverySampleOnce) {
  for (const std::size_t size : {1u, 5u, 10000u})
    for (const int world_size : {1, 2, 3, 7, 16}) {
      std::size_t end = 0;
      for (int rank = 0; rank < world_size; ++rank) {
        const SampleRange share = evaluation_share(size, rank, world_size);
        EXPECT_EQ(share.begin, end);
        EXPECT_LE(share.size(), size / static_cast<std::size_t>(world_size) + 1);
        end = share.end;
      }
      EXPECT_EQ(end, size);
    }
}

}  // namespace
}  // namespace annulus
