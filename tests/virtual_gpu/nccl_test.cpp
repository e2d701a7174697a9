// NCCL on the virtual GPU: what its calls do, and what they return.
#include <algorithm>
#include <string>
#include <thread>

#include "tests/virtual_gpu/nccl_ranks.h"

namespace virtual_gpu::test {
namespace {

float sum_of_values(int ranks, std::size_t i) {
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += Rank::value(rank, i);
  return sum;
}

TEST_F(VirtualNccl, CollectivesMoveTheRightElements) {
  for (const int count : {1, 2, 3, 4}) {
    SCOPED_TRACE(count);
    start(count);
    together([](int, Rank& rank) {
      ncclAllReduce(rank.in, rank.out, 5, ncclFloat32, ncclSum, rank.comm, rank.stream);
    });
    for (int rank = 0; rank < count; ++rank) {
      const std::vector<float> sums = read(rank, of(rank).out, 5);
      for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(sums[i], sum_of_values(count, i));
    }
    together([](int, Rank& rank) {
      ncclReduceScatter(rank.in, rank.out, 3, ncclFloat32, ncclSum, rank.comm, rank.stream);
    });
    for (int rank = 0; rank < count; ++rank) {
      const std::vector<float> sums = read(rank, of(rank).out, 3);
      for (std::size_t i = 0; i < 3; ++i)
        EXPECT_EQ(sums[i], sum_of_values(count, 3 * static_cast<std::size_t>(rank) + i));
    }
    together(
        [](int, Rank& rank) { ncclAllGather(rank.in, rank.out, 7, ncclFloat32, rank.comm, rank.stream); });
    for (int rank = 0; rank < count; ++rank) {
      const std::vector<float> all = read(rank, of(rank).out, 7 * static_cast<std::size_t>(count));
      for (std::size_t i = 0; i < all.size(); ++i)
        EXPECT_EQ(all[i], Rank::value(static_cast<int>(i / 7), i % 7));
    }
    together([&](int, Rank& rank) {
      ncclBroadcast(rank.in, rank.out, 4, ncclFloat32, count - 1, rank.comm, rank.stream);
    });
    for (int rank = 0; rank < count; ++rank)
      EXPECT_EQ(read(rank, of(rank).out, 4)[3], Rank::value(count - 1, 3));
    // Everybody passes its elements on to the next.
    together([&](int rank, Rank& own) {
      ncclSend(own.in, 6, ncclFloat32, (rank + 1) % count, own.comm, own.stream);
      ncclRecv(own.out, 6, ncclFloat32, (rank + count - 1) % count, own.comm, own.stream);
    });
    for (int rank = 0; rank < count; ++rank)
      EXPECT_EQ(read(rank, of(rank).out, 6)[5], Rank::value((rank + count - 1) % count, 5));
    for (Rank& rank : ranks) ncclCommAbort(rank.comm);
    for (Rank& rank : ranks) rank.release();
    ranks.clear();
  }
}

TEST_F(VirtualNccl, CollectivesWorkInPlace) {
  start(3);
  together([](int, Rank& rank) {
    ncclAllReduce(rank.in, rank.in, 8, ncclFloat32, ncclSum, rank.comm, rank.stream);
  });
  EXPECT_EQ(read(1, of(1).in, 8)[7], sum_of_values(3, 7));
  together([](int rank, Rank& own) {
    ncclReduceScatter(own.in, own.in + 2 * rank, 2, ncclFloat32, ncclSum, own.comm, own.stream);
  });
  EXPECT_EQ(read(2, of(2).in, 6)[5], 3 * sum_of_values(3, 5));
  together([](int rank, Rank& own) {
    ncclAllGather(own.in + 2 * rank, own.in, 2, ncclFloat32, own.comm, own.stream);
  });
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(read(0, of(0).in, 6)[i], 3 * sum_of_values(3, i));
  together([](int, Rank& rank) {
    ncclBroadcast(rank.in + 8, rank.in + 8, 2, ncclFloat32, 1, rank.comm, rank.stream);
  });
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(read(rank, of(rank).in + 8, 2)[1], Rank::value(1, 9));
}

template <class T>
std::vector<T> reduced(std::vector<Rank>& ranks, std::vector<std::vector<T>> inputs, ncclDataType_t dtype,
                       ncclRedOp_t op) {
  const std::size_t bytes = inputs[0].size() * sizeof(T);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    cudaMemcpyAsync(ranks[rank].in, inputs[rank].data(), bytes, cudaMemcpyDefault, ranks[rank].stream);
  ncclGroupStart();
  for (Rank& rank : ranks)
    ncclAllReduce(rank.in, rank.out, inputs[0].size(), dtype, op, rank.comm, rank.stream);
  ncclGroupEnd();
  std::vector<T> result(inputs[0].size());
  cudaMemcpyAsync(result.data(), ranks[1].out, bytes, cudaMemcpyDefault, ranks[1].stream);
  return result;
}

TEST_F(VirtualNccl, EveryTypeAndOperation) {
  start(2);
  using Bytes = std::vector<std::uint8_t>;
  using Ints = std::vector<std::int32_t>;
  using Longs = std::vector<std::int64_t>;
  using Doubles = std::vector<double>;
  using Halves = std::vector<std::uint16_t>;
  EXPECT_EQ(reduced<std::uint8_t>(ranks, {{200, 1}, {100, 2}}, ncclUint8, ncclSum), (Bytes{44, 3}));
  EXPECT_EQ(reduced<std::int32_t>(ranks, {{-3, 7}, {5, -7}}, ncclInt32, ncclMax), (Ints{5, 7}));
  EXPECT_EQ(reduced<std::int32_t>(ranks, {{-3, 7}, {5, -7}}, ncclInt32, ncclMin), (Ints{-3, -7}));
  EXPECT_EQ(reduced<std::int64_t>(ranks, {{1ll << 40}, {3}}, ncclInt64, ncclProd), (Longs{3ll << 40}));
  EXPECT_EQ(reduced<double>(ranks, {{1e-9}, {1.0}}, ncclFloat64, ncclSum), (Doubles{1.0 + 1e-9}));
  EXPECT_EQ(reduced<float>(ranks, {{1, 3}, {2, 5}}, ncclFloat32, ncclAvg), (std::vector<float>{1.5f, 4}));
  // 1.0 + 2^-8 rounds to the even 1.0 in bf16, and 1.0 + 2^-10 is one more in f16.
  EXPECT_EQ(reduced<std::uint16_t>(ranks, {{0x3f80}, {0x3b80}}, ncclBfloat16, ncclSum), (Halves{0x3f80}));
  EXPECT_EQ(reduced<std::uint16_t>(ranks, {{0x3c00}, {0x1400}}, ncclFloat16, ncclSum), (Halves{0x3c01}));
}

TEST_F(VirtualNccl, TheOrderOfAdditionsIsAnotherOneEachTime) {
  start(4);
  const std::vector<std::vector<float>> inputs{{1e8f}, {1}, {-1e8f}, {1}};
  std::vector<float> seen;
  for (int i = 0; i < 20; ++i) {
    const float sum = reduced<float>(ranks, inputs, ncclFloat32, ncclSum)[0];
    if (std::find(seen.begin(), seen.end(), sum) == seen.end()) seen.push_back(sum);
  }
  EXPECT_GT(seen.size(), 1u);
}

TEST_F(VirtualNccl, NothingIsNothing) {
  start(2);
  cudaSetDevice(0);
  EXPECT_EQ(ncclAllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum, of(0).comm, of(0).stream), ncclSuccess);
  EXPECT_EQ(cudaStreamSynchronize(of(0).stream), cudaSuccess) << "rank 1 did not call it";
  together([](int rank, Rank& own) {
    if (rank == 0) ncclSend(nullptr, 0, ncclFloat32, 1, own.comm, own.stream);
    if (rank == 1) ncclRecv(nullptr, 0, ncclFloat32, 0, own.comm, own.stream);
  });
  finish();
}

TEST_F(VirtualNccl, Queries) {
  start(3);
  int count = 0, device = 0, rank = 0, version = 0;
  EXPECT_EQ(ncclCommCount(of(2).comm, &count), ncclSuccess);
  EXPECT_EQ(ncclCommCuDevice(of(2).comm, &device), ncclSuccess);
  EXPECT_EQ(ncclCommUserRank(of(2).comm, &rank), ncclSuccess);
  EXPECT_EQ(ncclGetVersion(&version), ncclSuccess);
  EXPECT_EQ(count, 3);
  EXPECT_EQ(device, 2);
  EXPECT_EQ(rank, 2);
  EXPECT_EQ(version, NCCL_VERSION(2, 28, 9));
  EXPECT_STREQ(ncclGetErrorString(ncclInvalidUsage), "invalid usage");
}

TEST_F(VirtualNccl, InvalidArgumentsAreReturned) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument);
  ncclConfig_t config{};
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  start(2);
  EXPECT_EQ(together([](int, Rank& rank) {
              ncclBroadcast(rank.in, rank.out, 4, ncclFloat32, 2, rank.comm, rank.stream);
            }),
            ncclInvalidArgument);
  EXPECT_NE(std::string(ncclGetLastError(of(1).comm)).find("rank 2 is not one of 2"), std::string::npos);
}

TEST_F(VirtualNccl, RanksMayBeThreads) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    virtual_gpu::set_seed(seed);
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; ++number) {
      threads.emplace_back([&, number] {
        Rank rank;
        rank.make(number);
        ASSERT_EQ(ncclCommInitRank(&rank.comm, 4, id, number), ncclSuccess);
        for (int i = 0; i < 5; ++i)
          ncclAllReduce(i % 2 == 0 ? rank.in : rank.out, i % 2 == 0 ? rank.out : rank.in, 16, ncclFloat32,
                        ncclMax, rank.comm, rank.stream);
        std::vector<float> host(16);
        cudaMemcpyAsync(host.data(), rank.out, 64, cudaMemcpyDefault, rank.stream);
        EXPECT_EQ(host[15], Rank::value(3, 15));
        EXPECT_EQ(ncclCommDestroy(rank.comm), ncclSuccess);
        rank.release();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(virtual_gpu::leak_report(), "");
  }
}

TEST_F(VirtualNccl, ACommunicatorThatDoesNotBlockMustBePolled) {
  start(2, 0);
  bool was_in_progress = false;
  for (int i = 0; i < 20; ++i) {
    const ncclResult_t result = together([](int, Rank& rank) {
      ncclAllReduce(rank.in, rank.out, 4, ncclFloat32, ncclSum, rank.comm, rank.stream);
    });
    if (result == ncclInProgress) {
      was_in_progress = true;
      ncclResult_t used = ncclSuccess;
      for (Rank& rank : ranks) {
        int count = 0;
        if (used == ncclSuccess) used = ncclCommCount(rank.comm, &count);
      }
      EXPECT_EQ(used, ncclInvalidArgument);
      EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("in progress"), std::string::npos);
    }
    wait();
    finish();
    EXPECT_EQ(read(1, of(1).out, 4)[3], sum_of_values(2, 3));
  }
  EXPECT_TRUE(was_in_progress);
}

TEST_F(VirtualNccl, FinalizeWaitsForAllRanks) {
  start(2, 0);
  EXPECT_EQ(ncclCommFinalize(of(0).comm), ncclInProgress);
  ncclResult_t state = ncclSuccess;
  for (int i = 0; i < 50; ++i) {
    ncclCommGetAsyncError(of(0).comm, &state);
    ASSERT_EQ(state, ncclInProgress);
  }
  EXPECT_EQ(ncclCommDestroy(of(0).comm), ncclInvalidArgument);
  EXPECT_EQ(ncclCommFinalize(of(1).comm), ncclInProgress);
  wait();
  EXPECT_EQ(ncclAllReduce(of(0).in, of(0).out, 4, ncclFloat32, ncclSum, of(0).comm, of(0).stream),
            ncclInvalidArgument);
  for (Rank& rank : ranks) {
    EXPECT_EQ(ncclCommDestroy(rank.comm), ncclSuccess);
    rank.comm = nullptr;
  }
}

TEST_F(VirtualNccl, TwoRanksOfOneDeviceAreRefused) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclComm_t comms[2] = {};
  ncclGroupStart();
  for (int rank = 0; rank < 2; ++rank) ncclCommInitRank(&comms[rank], 2, id, rank);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(comms[0])).find("duplicate GPU"), std::string::npos);
  for (ncclComm_t comm : comms) ncclCommAbort(comm);
}

// A device's streams wait for what never comes; only an abort on every rank ends it.
TEST_F(VirtualNccl, AbortEndsThePendingWorkOfItsRankOnly) {
  start(3);
  virtual_gpu::hang_nccl_rank(1, 2);
  cudaEvent_t events[3] = {};
  for (int i = 0; i < 2; ++i)
    together([&](int number, Rank& rank) {
      ncclAllReduce(rank.in, rank.out, 4, ncclFloat32, ncclSum, rank.comm, rank.stream);
      if (i == 0) cudaEventCreateWithFlags(&events[number], cudaEventDisableTiming);
    });
  for (int rank = 0; rank < 3; ++rank) cudaEventRecord(events[rank], of(rank).stream);
  const auto is_pending = [&](int rank) {
    for (int i = 0; i < 100; ++i)
      if (cudaEventQuery(events[rank]) == cudaSuccess) return false;
    return true;
  };
  ncclResult_t state = ncclSuccess;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(is_pending(rank));
    ncclCommGetAsyncError(of(rank).comm, &state);
    EXPECT_EQ(state, ncclSuccess) << "nobody is told";
  }
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(is_pending(rank)) << "the others do not end it";
    EXPECT_EQ(ncclCommAbort(of(rank).comm), ncclSuccess);
    of(rank).comm = nullptr;
    EXPECT_FALSE(is_pending(rank));
  }
  for (cudaEvent_t event : events) cudaEventDestroy(event);
}

TEST_F(VirtualNccl, ADeadRankIsFoundOutAfterAWhile) {
  start(3);
  virtual_gpu::kill_nccl_rank(2, 1);
  std::vector<ncclResult_t> results;
  const ncclResult_t result = together([](int, Rank& rank) {
    ncclAllReduce(rank.in, rank.out, 4, ncclFloat32, ncclSum, rank.comm, rank.stream);
  });
  EXPECT_EQ(result, ncclSystemError);
  EXPECT_EQ(ncclAllReduce(of(2).in, of(2).out, 4, ncclFloat32, ncclSum, of(2).comm, of(2).stream),
            ncclSystemError);
  for (int rank = 0; rank < 2; ++rank) {
    ncclResult_t state = ncclSuccess;
    int polls = 0;
    while (state == ncclSuccess && ++polls < 100) ncclCommGetAsyncError(of(rank).comm, &state);
    EXPECT_EQ(state, ncclRemoteError);
    EXPECT_GT(polls, 1);
    EXPECT_NE(std::string(ncclGetLastError(of(rank).comm)).find("rank 2"), std::string::npos);
  }
}

TEST_F(VirtualNccl, AnAsynchronousErrorOfOneRank) {
  start(2);
  virtual_gpu::fail_nccl_rank(0, 3);
  for (int i = 0; i < 3; ++i)
    together([](int, Rank& rank) {
      ncclAllReduce(rank.in, rank.out, 4, ncclFloat32, ncclSum, rank.comm, rank.stream);
    });
  ncclResult_t state = ncclSuccess;
  ncclCommGetAsyncError(of(0).comm, &state);
  EXPECT_EQ(state, ncclSystemError);
  EXPECT_NE(std::string(ncclGetLastError(of(0).comm)).find("ncclAllReduce"), std::string::npos);
  ncclCommGetAsyncError(of(1).comm, &state);
  EXPECT_EQ(state, ncclSuccess);
}

TEST_F(VirtualNccl, AMessageWithoutAGroupWaitsForItsReceiver) {
  start(2);
  ncclSend(of(0).in, 4, ncclFloat32, 1, of(0).comm, of(0).stream);
  std::thread([&] { ncclRecv(of(1).out, 4, ncclFloat32, 0, of(1).comm, of(1).stream); }).join();
  finish();
  EXPECT_EQ(read(1, of(1).out, 4)[3], Rank::value(0, 3));
}

}  // namespace
}  // namespace virtual_gpu::test
