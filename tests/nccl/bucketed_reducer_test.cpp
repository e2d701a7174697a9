// Buckets: where they are cut, when they are reduced, and that their size changes no bit.
#include "nccl/bucketed_reducer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "tests/nccl/run_ranks.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

using test::expect_error;
using test::run_threads;

constexpr std::size_t kElements = 700 * 1024 + 5;  // 2.7 MiB and a bit

Tensor arena(Buffer& memory) { return Tensor(memory.data(), {kElements}); }

void fill(Tensor gradients, int rank) {
  std::mt19937 generator(static_cast<unsigned>(rank) + 11);
  std::normal_distribution<float> distribution;
  for (std::size_t i = 0; i < kElements; ++i) gradients.as<float>()[i] = distribution(generator);
}

// Where the ranges end that layers would announce: of very different sizes, some empty.
constexpr std::size_t kEnds[] = {3, 64, 64, 1000, 300000, 300001, 310000, kElements};

void announce_all(GradientSynchronizer& reducer) {
  std::size_t begin = 0;
  for (const std::size_t end : kEnds) {
    reducer.add({begin, end}, {});
    begin = end;
  }
  reducer.finalize({});
}

TEST(BucketedReducer, CoversTheArenaWithASmallFirstBucket) {
  const auto identity = make_identity_communicator();
  Buffer memory(Device::cpu(), kElements * sizeof(float));
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{64} << 10, std::size_t{1} << 21, std::size_t{1} << 30}) {
    const BucketedReducer reducer(*identity, arena(memory), bytes);
    std::size_t end = 0;
    for (const ElementRange& bucket : reducer.buckets()) {
      EXPECT_EQ(bucket.begin, end);
      EXPECT_GT(bucket.end, bucket.begin);
      EXPECT_EQ(bucket.begin % 64, 0u) << "buckets begin at 256 bytes";
      EXPECT_LE(bucket.size() * sizeof(float), std::max(bytes, std::size_t{256}));
      end = bucket.end;
    }
    EXPECT_EQ(end, kElements);
    EXPECT_LE(reducer.buckets()[0].size() * sizeof(float), BucketedReducer::kFirstBucketBytes);
  }
}

TEST(BucketedReducer, AnEmptyArenaHasNoBuckets) {
  const auto identity = make_identity_communicator();
  BucketedReducer reducer(*identity, Tensor(nullptr, {0}));
  EXPECT_TRUE(reducer.buckets().empty());
  reducer.finalize({});
}

TEST(BucketedReducer, TheBucketSizeChangesNoBit) {
  for (const int world_size : {2, 3}) {
    std::vector<float> expected(kElements);
    run_threads(world_size, [&](Communicator& communicator) {
      std::vector<float> own(kElements);
      fill(Tensor(own.data(), {kElements}), communicator.rank());
      communicator.all_reduce_sum(own.data(), kElements, DType::f32, {});
      if (communicator.rank() == 0) expected = own;
      communicator.barrier();
      for (const bool shared : {false, true}) {
        Buffer memory = shared ? communicator.allocate(Device::cpu(), kElements * sizeof(float))
                               : Buffer(Device::cpu(), kElements * sizeof(float));
        for (const std::size_t bytes : {std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{1} << 30}) {
          BucketedReducer reducer(communicator, arena(memory), bytes);
          for (int step = 0; step < 2; ++step) {
            fill(arena(memory), communicator.rank());
            announce_all(reducer);
            EXPECT_EQ(std::memcmp(memory.data(), expected.data(), kElements * sizeof(float)), 0)
                << bytes << " bytes a bucket, step " << step;
          }
        }
      }
    });
  }
}

TEST(BucketedReducer, ReducesNoGradientBeforeItIsAnnounced) {
  run_threads(2, [](Communicator& communicator) {
    Buffer memory(Device::cpu(), kElements * sizeof(float));
    float* const gradients = arena(memory).as<float>();
    std::fill_n(gradients, kElements, -1.0f);
    BucketedReducer reducer(communicator, arena(memory), std::size_t{64} << 10);
    std::size_t begin = 0;
    for (const std::size_t end : kEnds) {
      std::fill(gradients + begin, gradients + end, static_cast<float>(communicator.rank() + 1));
      reducer.add({begin, end}, {});
      begin = end;
    }
    reducer.finalize({});
    EXPECT_EQ(std::count(gradients, gradients + kElements, 3.0f), kElements);
  });
}

TEST(BucketedReducer, GapsOverlapsAndMissingRangesAreErrors) {
  const auto identity = make_identity_communicator();
  Buffer memory(Device::cpu(), kElements * sizeof(float));
  BucketedReducer reducer(*identity, arena(memory));
  expect_error<ShapeError>([&] { reducer.add({5, 10}, {}); }, {"[5, 10)", "from 0 on"});
  reducer.add({0, 100}, {});
  expect_error<ShapeError>([&] { reducer.add({50, 200}, {}); }, {"[50, 200)", "from 100 on"});
  expect_error<ShapeError>([&] { reducer.add({100, kElements + 1}, {}); }, {std::to_string(kElements)});
  expect_error<ShapeError>([&] { reducer.finalize({}); }, {"only 100 of"});
}

TEST(BucketedReducer, GradientsAreF32) {
  const auto identity = make_identity_communicator();
  std::vector<double> doubles(8);
  expect_error<ShapeError>([&] { BucketedReducer(*identity, Tensor(doubles.data(), {8}, DType::f64)); },
                           {"f64", "f32"});
}

}  // namespace
}  // namespace annulus
