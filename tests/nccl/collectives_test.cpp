// Every collective on ranks that are threads and on ranks that are processes, over the same cases.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "nccl/connect.h"
#include "tests/nccl/run_ranks.h"
#include "tests/support/allocation_counter.h"

namespace annulus {
namespace {

using test::run_ranks;
using test::run_threads;

constexpr int kWorldSizes[] = {1, 2, 3, 4, 5, 8};
// None, one, odd, a prime past the single-synchronisation limit, whole chunks, and several chunks and a bit.
constexpr std::size_t kCounts[] = {0, 1, 17, 1021, 65536, 200003};

enum class Memory { own, shared, mixed, shifted };
constexpr Memory kMemories[] = {Memory::own, Memory::shared, Memory::mixed, Memory::shifted};

// `count` elements where `memory` says: own memory, shared memory, own memory on odd ranks only, or at
// another offset of shared memory on each rank.
template <class T>
class Elements {
 public:
  Elements(Communicator& communicator, Memory memory, std::size_t count)
      : shared_(communicator.allocate(Device::cpu(), (count + 16) * sizeof(T))), own_(count), count_(count) {
    const bool in_own = memory == Memory::own || (memory == Memory::mixed && communicator.rank() % 2 == 1);
    const int shift = memory == Memory::shifted ? communicator.rank() % 16 : 0;
    data_ = in_own ? own_.data() : static_cast<T*>(shared_.data()) + shift;
  }
  T* data() { return data_; }
  T& operator[](std::size_t i) { return data_[i]; }
  std::size_t size() const { return count_; }

 private:
  Buffer shared_;
  std::vector<T> own_;
  std::size_t count_;
  T* data_ = nullptr;
};

// A whole number, small enough that sums over ranks are exact in every dtype, and different for each rank.
int value(int rank, std::size_t i) {
  return static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 3) % 11);
}

int sum_of_values(int ranks, std::size_t i) {
  int sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += value(rank, i);
  return sum;
}

template <class T>
std::size_t wrong_sums(Communicator& communicator, Memory memory, std::size_t count) {
  Elements<T> elements(communicator, memory, count);
  for (std::size_t i = 0; i < count; ++i) elements[i] = static_cast<T>(value(communicator.rank(), i));
  communicator.all_reduce_sum(elements.data(), count, DTypeOf<T>::value, {});
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    wrong += elements[i] != static_cast<T>(sum_of_values(communicator.world_size(), i));
  }
  return wrong;
}

TEST(Collectives, AllReduceSumsExactly) {
  for (const int world_size : kWorldSizes) {
    run_ranks(world_size, [](Communicator& communicator) {
      for (const Memory memory : kMemories) {
        for (const std::size_t count : kCounts) {
          EXPECT_EQ(wrong_sums<float>(communicator, memory, count), 0u)
              << count << " elements over " << communicator.world_size() << " ranks, memory "
              << static_cast<int>(memory);
        }
      }
    });
  }
}

TEST(Collectives, AllReduceKnowsEveryPlainDType) {
  run_ranks(3, [](Communicator& communicator) {
    for (const std::size_t count : kCounts) {
      EXPECT_EQ(wrong_sums<double>(communicator, Memory::shared, count), 0u) << count;
      EXPECT_EQ(wrong_sums<std::int32_t>(communicator, Memory::own, count), 0u) << count;
      EXPECT_EQ(wrong_sums<std::int64_t>(communicator, Memory::shared, count), 0u) << count;
      EXPECT_EQ(wrong_sums<std::uint8_t>(communicator, Memory::shared, count), 0u) << count;
    }
  });
}

// The tree as the architecture words it: while more than one is left, add adjacent aligned pairs.
float pairwise_sum(std::vector<float> values) {
  while (values.size() > 1) {
    std::vector<float> pairs;
    for (std::size_t i = 0; i + 1 < values.size(); i += 2) pairs.push_back(values[i] + values[i + 1]);
    if (values.size() % 2 == 1) pairs.push_back(values.back());
    values = pairs;
  }
  return values[0];
}

std::vector<float> random_values(int rank, std::size_t count) {
  std::mt19937 generator(static_cast<unsigned>(rank) + 1);
  std::normal_distribution<float> distribution(0.0f, 1000.0f);
  std::vector<float> values(count);
  for (float& element : values) element = distribution(generator);
  return values;
}

TEST(Collectives, AllReduceAddsInTheFixedTree) {
  constexpr std::size_t kCount = 70001;
  for (const int world_size : kWorldSizes) {
    std::vector<std::vector<float>> inputs;
    for (int rank = 0; rank < world_size; ++rank) inputs.push_back(random_values(rank, kCount));
    std::vector<float> expected(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      std::vector<float> column;
      for (const auto& input : inputs) column.push_back(input[i]);
      expected[i] = pairwise_sum(column);
    }
    run_ranks(world_size, [&](Communicator& communicator) {
      const std::vector<float>& input = inputs[static_cast<std::size_t>(communicator.rank())];
      for (const Memory memory : kMemories) {
        // However the range is cut, the bits are the same.
        for (const std::size_t part : {std::size_t{100}, std::size_t{9973}, kCount}) {
          Elements<float> elements(communicator, memory, kCount);
          std::memcpy(elements.data(), input.data(), kCount * sizeof(float));
          for (std::size_t begin = 0; begin < kCount; begin += part) {
            communicator.all_reduce_sum(elements.data() + begin, std::min(part, kCount - begin), DType::f32,
                                        {});
          }
          EXPECT_EQ(std::memcmp(elements.data(), expected.data(), kCount * sizeof(float)), 0)
              << "parts of " << part << ", " << communicator.world_size() << " ranks";
        }
      }
    });
  }
}

TEST(Collectives, BroadcastSendsTheRootsElements) {
  for (const int world_size : kWorldSizes) {
    run_ranks(world_size, [](Communicator& communicator) {
      for (const Memory memory : kMemories) {
        for (const std::size_t count : kCounts) {
          const int root = static_cast<int>(count) % communicator.world_size();
          Elements<std::int32_t> elements(communicator, memory, count);
          for (std::size_t i = 0; i < count; ++i) elements[i] = value(communicator.rank(), i);
          communicator.broadcast(elements.data(), count, DType::i32, root, {});
          std::size_t wrong = 0;
          for (std::size_t i = 0; i < count; ++i) wrong += elements[i] != value(root, i);
          EXPECT_EQ(wrong, 0u) << count << " elements from rank " << root << " of "
                               << communicator.world_size();
        }
      }
    });
  }
}

TEST(Collectives, AllGatherOrdersByRank) {
  for (const int world_size : kWorldSizes) {
    run_ranks(world_size, [](Communicator& communicator) {
      const auto ranks = static_cast<std::size_t>(communicator.world_size());
      for (const Memory memory : kMemories) {
        for (const std::size_t count : kCounts) {
          Elements<double> send(communicator, memory, count);
          for (std::size_t i = 0; i < count; ++i) send[i] = value(communicator.rank(), i);
          std::vector<double> received(count * ranks, -1.0);
          communicator.all_gather(send.data(), received.data(), count, DType::f64, {});
          std::size_t wrong = 0;
          for (std::size_t rank = 0; rank < ranks; ++rank) {
            for (std::size_t i = 0; i < count; ++i) {
              wrong += received[rank * count + i] != value(static_cast<int>(rank), i);
            }
          }
          EXPECT_EQ(wrong, 0u) << count << " elements from each of " << ranks;
        }
      }
    });
  }
}

TEST(Collectives, BarrierWaitsForEveryRank) {
  for (const int world_size : kWorldSizes) {
    std::atomic<int> arrived{0};
    run_threads(world_size, [&](Communicator& communicator) {
      for (int round = 1; round <= 200; ++round) {
        ++arrived;
        communicator.barrier();
        EXPECT_GE(arrived.load(), round * world_size);
        communicator.barrier();
      }
    });
  }
}

TEST(Collectives, MixedKindsInARowDoNotDisturbEachOther) {
  run_ranks(3, [](Communicator& communicator) {
    for (int round = 0; round < 300; ++round) {
      float sum = static_cast<float>(communicator.rank() + round);
      communicator.all_reduce_sum(&sum, 1, DType::f32, {});
      ASSERT_EQ(sum, static_cast<float>(3 + 3 * round));
      int from_root = communicator.rank() * 100 + round;
      communicator.broadcast(&from_root, 1, DType::i32, round % 3, {});
      ASSERT_EQ(from_root, round % 3 * 100 + round);
      const int own = communicator.rank() + round;
      int all[3] = {};
      communicator.all_gather(&own, all, 1, DType::i32, {});
      for (int rank = 0; rank < 3; ++rank) ASSERT_EQ(all[rank], rank + round);
      if (round % 7 == 0) communicator.barrier();
    }
  });
}

TEST(Collectives, BuffersMayBeFreedInAnyOrderAndOutliveTheCommunicator) {
  run_ranks(2, [](Communicator& communicator) {
    for (int round = 0; round < 50; ++round) {
      Buffer first = communicator.allocate(Device::cpu(), 100000);
      Buffer second = communicator.allocate(Device::cpu(), 300000);
      if (communicator.rank() == 0) first = Buffer();  // then only rank 1 has it
      static_cast<float*>(second.data())[70000] = 1.0f;
      communicator.all_reduce_sum(second.data(), 75000, DType::f32, {});
      ASSERT_EQ(static_cast<float*>(second.data())[70000], 2.0f);
    }
  });
  Buffer survivor;
  {
    auto ranks = make_in_memory_communicators(1);
    survivor = ranks[0]->allocate(Device::cpu(), 5000);
  }
  std::memset(survivor.data(), 1, survivor.bytes());
}

TEST(Collectives, SteadyStateAllocatesNothing) {
  if (!test::kCountsAllocations) GTEST_SKIP() << "a sanitizer counts its own allocations";
  std::atomic<std::size_t> before{0};
  run_threads(2, [&](Communicator& communicator) {
    Buffer shared = communicator.allocate(Device::cpu(), 1 << 20);
    std::vector<float> own(100000), gathered(200000);
    communicator.barrier();
    if (communicator.rank() == 0) before = test::allocation_count.load();
    for (int round = 0; round < 20; ++round) {
      communicator.all_reduce_sum(shared.data(), 1 << 18, DType::f32, {});
      communicator.all_reduce_sum(own.data(), own.size(), DType::f32, {});
      communicator.all_reduce_sum(own.data(), 10, DType::f32, {});
      communicator.broadcast(own.data(), own.size(), DType::f32, 1, {});
      communicator.all_gather(own.data(), gathered.data(), own.size(), DType::f32, {});
      communicator.barrier();
    }
    if (communicator.rank() == 0) {
      EXPECT_EQ(test::allocation_count.load(), before.load());
    }
    communicator.barrier();
  });
}

TEST(Collectives, OneRankIsTheIdentity) {
  const auto communicator = make_identity_communicator();
  EXPECT_EQ(communicator->rank(), 0);
  EXPECT_EQ(communicator->world_size(), 1);
  float element = 3.0f, copy = 0.0f;
  communicator->all_reduce_sum(&element, 1, DType::f32, {});
  communicator->broadcast(&element, 1, DType::f32, 0, {});
  communicator->all_gather(&element, &copy, 1, DType::f32, {});
  communicator->barrier();
  EXPECT_EQ(element, 3.0f);
  EXPECT_EQ(copy, 3.0f);
  EXPECT_EQ(connect({})->world_size(), 1);
}

}  // namespace
}  // namespace annulus
