// One program with a fault per report of the virtual GPU's NCCL.
#include <cstdlib>
#include <string>

#include "tests/virtual_gpu/nccl_ranks.h"

namespace virtual_gpu::test {
namespace {

using VirtualNcclDeathTest = VirtualNccl;

TEST_F(VirtualNcclDeathTest, RanksThatDisagree) {
  start(3);
  const auto disagree = [&](auto last) {
    together([&](int number, Rank& rank) {
      if (number == 2) return static_cast<void>(last(rank));
      ncclAllReduce(rank.in, rank.out, 4, ncclFloat32, ncclSum, rank.comm, rank.stream);
    });
  };
  const std::string others =
      "collective 0: rank 0 .cuda:0. called ncclAllReduce of 4 ncclFloat32 with ncclSum, ";
  EXPECT_DEATH(disagree([](Rank& rank) {
                 return ncclAllReduce(rank.in, rank.out, 5, ncclFloat32, ncclSum, rank.comm, rank.stream);
               }),
               others + "but rank 2 .cuda:2. called ncclAllReduce of 5 .* differ in count");
  EXPECT_DEATH(disagree([](Rank& rank) {
                 return ncclAllReduce(rank.in, rank.out, 4, ncclInt32, ncclSum, rank.comm, rank.stream);
               }),
               others + ".* 4 ncclInt32 .* differ in type");
  EXPECT_DEATH(disagree([](Rank& rank) {
                 return ncclAllReduce(rank.in, rank.out, 4, ncclFloat32, ncclMax, rank.comm, rank.stream);
               }),
               others + ".* with ncclMax; they differ in operation");
  EXPECT_DEATH(disagree([](Rank& rank) {
                 return ncclAllGather(rank.in, rank.out, 4, ncclFloat32, rank.comm, rank.stream);
               }),
               others + ".* ncclAllGather of 4 ncclFloat32; they differ in kind");
}

TEST_F(VirtualNcclDeathTest, RootsAndMessagesThatDisagree) {
  start(2);
  EXPECT_DEATH(together([](int number, Rank& rank) {
                 ncclBroadcast(rank.in, rank.out, 4, ncclFloat32, number, rank.comm, rank.stream);
               }),
               "ncclBroadcast of 4 ncclFloat32 from rank 0, .* from rank 1; they differ in root");
  EXPECT_DEATH(
      together([](int number, Rank& rank) {
        if (number == 0) ncclSend(rank.in, 4, ncclFloat32, 1, rank.comm, rank.stream);
        if (number == 1) ncclRecv(rank.out, 3, ncclFloat32, 0, rank.comm, rank.stream);
      }),
      "message 0: .* ncclSend of 4 ncclFloat32 to rank 1, .* ncclRecv of 3 .*; they differ in count");
}

TEST_F(VirtualNcclDeathTest, CollectivesInAnotherOrder) {
  start(2);
  EXPECT_DEATH(together([](int number, Rank& rank) {
                 const std::size_t first = number == 0 ? 3 : 4;
                 ncclAllReduce(rank.in, rank.out, first, ncclFloat32, ncclSum, rank.comm, rank.stream);
                 ncclAllReduce(rank.in, rank.out + 8, 7 - first, ncclFloat32, ncclSum, rank.comm,
                               rank.stream);
               }),
               "disagree about collective 0: .* 3 .* 4 ");
}

TEST_F(VirtualNcclDeathTest, Buffers) {
  start(2);
  const auto reduce = [&](auto send, auto receive, std::size_t count) {
    together([&](int, Rank& rank) {
      ncclAllReduce(send(rank), receive(rank), count, ncclFloat32, ncclSum, rank.comm, rank.stream);
    });
    finish();
  };
  const auto in = [](Rank& rank) { return rank.in; };
  const auto out = [](Rank& rank) { return rank.out; };
  EXPECT_DEATH(reduce(in, out, kRoom + 1), "send buffer of 260 bytes touches byte 256 of allocation");
  EXPECT_DEATH(reduce([](Rank& rank) { return rank.in + 1; }, [](Rank& rank) { return rank.out + 1; }, kRoom),
               "send buffer of 256 bytes touches byte 256");
  EXPECT_DEATH(reduce(
                   in, [](Rank& rank) { return rank.out + 1; }, kRoom),
               "receive buffer of 256 bytes touches byte 256");
  EXPECT_DEATH(reduce(out, in, 4),
               "ncclAllReduce .* on rank . .cuda:.*: read of never-written memory: byte 0");
  EXPECT_DEATH(reduce([&](Rank&) { return of(0).in; }, out, 4),
               "rank 1 .cuda:1.: a buffer is not memory of its device; it is byte 0 of .* of cuda:0");
  static float on_host[4];
  EXPECT_DEATH(reduce(
                   in, [](Rank&) { return on_host; }, 4),
               "not memory of its device; it is host memory");
  EXPECT_DEATH(reduce(
                   in, [](Rank&) { return static_cast<float*>(nullptr); }, 4),
               "it is null");
}

TEST_F(VirtualNcclDeathTest, OverlappingBuffers) {
  start(2);
  const auto run = [&](auto call) {
    together(call);
    finish();
  };
  EXPECT_DEATH(run([](int, Rank& rank) {
                 ncclAllReduce(rank.in, rank.in + 1, 4, ncclFloat32, ncclSum, rank.comm, rank.stream);
               }),
               "what it receives overlaps what it sends");
  EXPECT_DEATH(run([](int, Rank& rank) {
                 ncclReduceScatter(rank.in, rank.in, 4, ncclFloat32, ncclSum, rank.comm, rank.stream);
               }),
               "rank 1 .cuda:1.: what it receives overlaps what it sends");
  EXPECT_DEATH(
      run([](int, Rank& rank) { ncclAllGather(rank.in, rank.in, 4, ncclFloat32, rank.comm, rank.stream); }),
      "rank 1 .cuda:1.: what it receives overlaps what it sends");
  EXPECT_DEATH(run([](int number, Rank& rank) {
                 ncclSend(rank.in, 4, ncclFloat32, 1 - number, rank.comm, rank.stream);
                 ncclRecv(rank.in + 3, 4, ncclFloat32, 1 - number, rank.comm, rank.stream);
               }),
               "overlaps what ncclSend of 4 ncclFloat32 .* of the same group uses");
}

TEST_F(VirtualNcclDeathTest, AStreamOfAnotherDevice) {
  start(2);
  EXPECT_DEATH(together([&](int, Rank& rank) {
                 ncclAllReduce(rank.in, rank.out, 4, ncclFloat32, ncclSum, rank.comm, of(0).stream);
               }),
               "ncclAllReduce .* on rank 1 .cuda:1.: the stream is of cuda:0");
}

TEST_F(VirtualNcclDeathTest, ACommunicatorThatIsGone) {
  start(1);
  const ncclComm_t comm = of(0).comm;
  ncclCommDestroy(comm);
  of(0).comm = nullptr;
  EXPECT_DEATH(ncclAllReduce(of(0).in, of(0).out, 4, ncclFloat32, ncclSum, comm, of(0).stream),
               "ncclAllReduce: the communicator was destroyed, aborted or never created");
  EXPECT_DEATH(ncclCommAbort(comm), "ncclCommAbort: the communicator was destroyed");
}

TEST_F(VirtualNcclDeathTest, MessagesThatWaitForEachOther) {
  start(3);
  EXPECT_DEATH(
      {
        for (int rank = 0; rank < 3; ++rank)
          ncclSend(of(rank).in, 4, ncclFloat32, (rank + 1) % 3, of(rank).comm, of(rank).stream);
      },
      "NCCL deadlock: .* between ncclGroupStart and ncclGroupEnd.\n.*rank 0 .* ncclSend .* waits for rank 1");
  EXPECT_DEATH(ncclSend(of(1).in, 4, ncclFloat32, 1, of(1).comm, of(1).stream),
               "rank 1 .cuda:1. in ncclSend of 4 ncclFloat32 to rank 1 waits for rank 1");
  EXPECT_DEATH(
      {
        ncclRecv(of(0).out, 4, ncclFloat32, 1, of(0).comm, of(0).stream);
        ncclAllReduce(of(1).in, of(1).out, 4, ncclFloat32, ncclSum, of(1).comm, of(1).stream);
      },
      "NCCL deadlock");
}

TEST_F(VirtualNcclDeathTest, OneThreadForTwoRanksWithoutAGroup) {
  start(2);
  EXPECT_DEATH(
      {
        for (Rank& rank : ranks)
          ncclAllReduce(rank.in, rank.out, 4, ncclFloat32, ncclSum, rank.comm, rank.stream);
      },
      "one thread called ncclAllReduce .* for rank 0 .cuda:0. and then for rank 1");
}

TEST_F(VirtualNcclDeathTest, WaitingForACallThatNobodyMakes) {
  start(3);
  virtual_gpu::set_nccl_patience(std::chrono::milliseconds(50));
  EXPECT_DEATH(
      {
        ncclAllReduce(of(1).in, of(1).out, 4, ncclFloat32, ncclSum, of(1).comm, of(1).stream);
        cudaStreamSynchronize(of(1).stream);
      },
      "cudaStreamSynchronize waits for .*\n.*rank 1 .cuda:1. is in ncclAllReduce of 4 .*; not called by rank "
      "0, "
      "rank 2");
  EXPECT_DEATH(
      {
        virtual_gpu::hang_nccl_rank(2, 1);
        together([](int, Rank& rank) {
          ncclAllReduce(rank.in, rank.out, 4, ncclFloat32, ncclSum, rank.comm, rank.stream);
        });
        cudaStreamSynchronize(of(1).stream);
      },
      "rank 1 .cuda:1. is in ncclAllReduce of 4 .*; not reached by the stream of rank 2");
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclComm_t comm = nullptr;
  EXPECT_DEATH(ncclCommInitRank(&comm, 3, id, 1),
               "ncclCommInitRank waits for .*\n.*rank 1 .* joins, but these have not: rank 0, rank 2");
  EXPECT_DEATH(ncclCommFinalize(of(0).comm),
               "ncclCommFinalize waits for .*\n.*rank 0 .* has finalized .* these have not: rank 1, rank 2");
}

TEST_F(VirtualNcclDeathTest, APeerThatHasFinalized) {
  start(2, 0);
  ncclCommFinalize(of(0).comm);
  EXPECT_DEATH(ncclAllReduce(of(1).in, of(1).out, 4, ncclFloat32, ncclSum, of(1).comm, of(1).stream),
               "rank 1 .cuda:1. waits in ncclAllReduce of 4 .* for rank 0, which has finalized");
}

TEST_F(VirtualNcclDeathTest, Ids) {
  ncclUniqueId id{};
  ncclComm_t comm = nullptr;
  EXPECT_DEATH(ncclCommInitRank(&comm, 1, id, 0), "the id is not from ncclGetUniqueId");
  ncclGetUniqueId(&id);
  ncclGroupStart();
  ncclCommInitRank(&comm, 2, id, 1);
  EXPECT_DEATH(ncclCommInitRank(&comm, 2, id, 1), "there are two of rank 1");
  EXPECT_DEATH(ncclCommInitRank(&comm, 3, id, 0), "rank 0 says that there are 3 ranks, another one said 2");
  ncclComm_t other = nullptr;
  cudaSetDevice(1);
  ncclCommInitRank(&other, 2, id, 0);
  EXPECT_DEATH(ncclCommInitRank(&comm, 2, id, 0), "or its ranks have joined");
  EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  ncclCommAbort(comm);
  ncclCommAbort(other);
}

TEST_F(VirtualNcclDeathTest, NotOffered) {
  start(2);
  EXPECT_DEATH(
      {
        cudaSetDevice(0);
        cudaStreamBeginCapture(of(0).stream, cudaStreamCaptureModeGlobal);
        ncclAllReduce(of(0).in, of(0).out, 4, ncclFloat32, ncclSum, of(0).comm, of(0).stream);
      },
      "the stream captures, which the virtual GPU does not offer for NCCL");
  EXPECT_DEATH(
      {
        cudaSetDevice(0);
        cudaStream_t second = nullptr;
        cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
        ncclGroupStart();
        ncclSend(of(0).in, 4, ncclFloat32, 1, of(0).comm, of(0).stream);
        ncclRecv(of(0).out, 4, ncclFloat32, 1, of(0).comm, second);
        ncclGroupEnd();
      },
      "is for another stream than");
}

__global__ void copy_one(const float* from, float* to) { to[0] = from[0]; }

// Whoever reads what is received must wait for it: under some schedule it is not there yet.
TEST_F(VirtualNcclDeathTest, AMissingEventAfterACollective) {
  start(2);
  const auto run = [&](std::uint64_t seed) {
    virtual_gpu::set_seed(seed);
    together([](int, Rank& rank) {
      ncclAllReduce(rank.in, rank.in, 4, ncclFloat32, ncclSum, rank.comm, rank.stream);
    });
    cudaSetDevice(1);
    cudaStream_t second = nullptr;
    cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
    const cudaLaunchConfig_t config{1, 1, 0, second};
    cudaLaunchKernelEx(&config, copy_one, of(1).in, of(1).out);
    cudaStreamSynchronize(of(1).stream);
    cudaStreamSynchronize(second);
    cudaStreamDestroy(second);
  };
  EXPECT_DEATH(
      {
        for (std::uint64_t seed = 0; seed < 30; ++seed) run(seed);
      },
      "never-written memory: byte 0");
}

TEST(VirtualNcclExitDeathTest, Leaks) {
  EXPECT_EXIT(
      {
        ncclUniqueId id;
        ncclGetUniqueId(&id);
        ncclComm_t comm = nullptr;
        ncclCommInitRank(&comm, 1, id, 0);
        std::exit(0);
      },
      ::testing::ExitedWithCode(1), "not released at exit:\n *a NCCL communicator");
}

}  // namespace
}  // namespace virtual_gpu::test
