// Ranks that die, hang, leave, abort or disagree: every other rank gets an error that names them, in time.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>
#include <vector>

#include "tests/nccl/run_ranks.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

using namespace std::chrono_literals;
using test::expect_error;
using test::run_processes;
using test::run_threads;
using test::start_process;
using test::start_ranks;
using test::wait_for;

// Every rank of three calls something; all must throw an error that contains `parts`.
void expect_disagreement(const std::function<void(Communicator&)>& call,
                         std::initializer_list<std::string_view> parts) {
  const auto body = [&](Communicator& communicator) {
    communicator.barrier();
    expect_error<CommunicationError>([&] { call(communicator); }, parts);
    // It does not work again afterwards.
    expect_error<CommunicationError>([&] { communicator.barrier(); }, parts);
  };
  run_threads(3, body);
  run_processes(3, body);
}

TEST(Faults, RanksThatCallDifferentCollectivesAreNamed) {
  std::vector<float> data(100);
  std::vector<float> gathered(300);
  expect_disagreement(
      [&](Communicator& communicator) {
        std::vector<float> own(data);
        if (communicator.rank() == 2) {
          communicator.broadcast(own.data(), 100, DType::f32, 1, {});
        } else {
          communicator.all_reduce_sum(own.data(), 100, DType::f32, {});
        }
      },
      {"collective 2", "rank 0", "all-reduce of 100 f32", "rank 2", "broadcast of 100 f32 from rank 1"});
}

TEST(Faults, RanksThatDifferInCountAreNamed) {
  expect_disagreement(
      [](Communicator& communicator) {
        const std::size_t count = communicator.rank() == 1 ? 70000 : 60000;
        std::vector<float> own(count);
        communicator.all_reduce_sum(own.data(), count, DType::f32, {});
      },
      {"rank 0", "60000 f32", "rank 1", "70000 f32"});
}

TEST(Faults, RanksThatDifferInDTypeAreNamed) {
  expect_disagreement(
      [](Communicator& communicator) {
        std::vector<std::int64_t> own(10);
        communicator.all_reduce_sum(own.data(), 10, communicator.rank() == 2 ? DType::i64 : DType::f32, {});
      },
      {"rank 0", "10 f32", "rank 2", "10 i64"});
}

TEST(Faults, RanksThatDifferInRootAreNamed) {
  expect_disagreement(
      [](Communicator& communicator) {
        float own = 0;
        communicator.broadcast(&own, 1, DType::f32, communicator.rank() == 1 ? 1 : 0, {});
      },
      {"from rank 0", "rank 1", "from rank 1"});
}

TEST(Faults, RanksThatAllocateDifferentSizesAreNamed) {
  expect_disagreement(
      [](Communicator& communicator) {
        (void)communicator.allocate(Device::cpu(), communicator.rank() == 2 ? 500 : 400);
      },
      {"allocate of 400 bytes", "rank 2", "allocate of 500 bytes"});
}

TEST(Faults, ARootOutsideTheGroupIsRefused) {
  run_threads(2, [](Communicator& communicator) {
    float own = 0;
    expect_error<CommunicationError>([&] { communicator.broadcast(&own, 1, DType::f32, 2, {}); },
                                     {"rank 2", "0 to 1"});
  });
}

TEST(Faults, AbortReachesEveryRankWithItsReason) {
  const auto body = [](Communicator& communicator) {
    communicator.barrier();
    if (communicator.rank() == 1) communicator.abort("the disk is full");
    std::vector<float> own(100000);
    try {
      for (;;) communicator.all_reduce_sum(own.data(), own.size(), DType::f32, {});
    } catch (const CommunicationError& error) {
      EXPECT_NE(std::string(error.what()).find("failed: the disk is full"), std::string::npos)
          << error.what();
      EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
      // The rank itself reports the failure; the others only stop because of it.
      EXPECT_EQ(dynamic_cast<const RelayedError*>(&error) == nullptr, communicator.rank() == 1);
    }
  };
  run_threads(4, body);
  run_processes(4, body);
}

TEST(Faults, AbortFromAnotherThreadEndsAWait) {
  run_threads(2, [](Communicator& communicator) {
    if (communicator.rank() == 1) {
      std::this_thread::sleep_for(100ms);
      return communicator.abort("stopped from outside");
    }
    expect_error<RelayedError>([&] { communicator.barrier(); }, {"rank 1", "stopped from outside"});
  });
}

TEST(Faults, ALongReasonIsCut) {
  run_threads(2, [](Communicator& communicator) {
    if (communicator.rank() == 0) communicator.abort(std::string(100000, 'x').c_str());
    expect_error<CommunicationError>([&] { communicator.barrier(); }, {"xxx"});
  });
}

TEST(Faults, ARankThatHasLeftIsNamed) {
  auto ranks = make_in_memory_communicators(2);
  ranks[1].reset();
  expect_error<CommunicationError>([&] { ranks[0]->barrier(); }, {"rank 1", "left"});
  run_processes(3, [](Communicator& communicator) {
    communicator.barrier();
    if (communicator.rank() == 2) return;
    expect_error<CommunicationError>([&] { communicator.barrier(); }, {"rank 2 (pid", "left", "barrier"});
  });
}

TEST(Faults, AKilledRankIsNamedByAllOthersWithinASecond) {
  for (const int victim : {0, 1, 2}) {
    const auto processes = start_ranks(3, [&](Communicator& communicator) {
      std::vector<float> own(100000);
      communicator.barrier();
      const std::string name = "rank " + std::to_string(victim) + " (pid ";
      std::chrono::steady_clock::time_point killed;
      try {
        for (int round = 0;; ++round) {
          communicator.all_reduce_sum(own.data(), own.size(), DType::f32, {});
          killed = std::chrono::steady_clock::now();
          if (communicator.rank() == victim && round == 20) raise(SIGKILL);
        }
      } catch (const CommunicationError& error) {
        EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("died"), std::string::npos) << error.what();
        EXPECT_LT(std::chrono::steady_clock::now() - killed, 10s) << "a second, and more on a busy machine";
      }
    });
    for (int rank = 0; rank < 3; ++rank) {
      const int status = wait_for(processes[static_cast<std::size_t>(rank)]);
      if (rank == victim) {
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
      } else {
        EXPECT_EQ(status, 0) << "rank " << rank << " with victim " << victim;
      }
    }
  }
}

TEST(Faults, AStoppedRankIsNamedAtTheDeadline) {
  const auto processes = start_ranks(
      3,
      [](Communicator& communicator) {
        communicator.barrier();
        if (communicator.rank() == 1) raise(SIGSTOP);
        // The stopped rank, once it goes on, learns what became of the others.
        expect_error<CommunicationError>([&] { communicator.barrier(); },
                                         {"waited ", "rank 1 (pid ", "alive", "deadline"});
      },
      500ms);
  EXPECT_EQ(wait_for(processes[0]), 0);
  EXPECT_EQ(wait_for(processes[2]), 0);
  kill(processes[1], SIGCONT);
  // It sees the others' failure or, if it looks later, that they have left: both are errors.
  EXPECT_EQ(wait_for(processes[1]), 0);
}

TEST(Faults, AMissingRankIsNamedWhileWaitingAndAtTheDeadline) {
  const FileDescriptor segment(make_shared_segment(4));
  const auto start = [&](int rank) {
    return start_process([&, rank] {
      expect_error<CommunicationError>(
          [&] { make_shared_memory_communicator(dup(segment.get()), rank, 4, 300ms); },
          {"4 ranks", "not here yet: rank 1, rank 3"});
    });
  };
  const pid_t zero = start(0), two = start(2);
  EXPECT_EQ(wait_for(zero), 0);
  EXPECT_EQ(wait_for(two), 0);
}

TEST(Faults, ARankThatDiesBeforeAllHaveJoinedIsNamed) {
  const FileDescriptor segment(make_shared_segment(3));
  const pid_t victim = start_process([&] { make_shared_memory_communicator(dup(segment.get()), 1, 3); });
  const pid_t other = start_process([&] {
    expect_error<CommunicationError>([&] { make_shared_memory_communicator(dup(segment.get()), 0, 3); },
                                     {"rank 1 (pid", "died before all ranks had joined"});
  });
  std::this_thread::sleep_for(200ms);
  kill(victim, SIGKILL);
  wait_for(victim);
  EXPECT_EQ(wait_for(other), 0);
}

TEST(Faults, ASecondProcessWithTheSameRankIsRefusedAndTheRunGoesOn) {
  const FileDescriptor segment(make_shared_segment(2));
  const pid_t first =
      start_process([&] { make_shared_memory_communicator(dup(segment.get()), 1, 2)->barrier(); });
  std::this_thread::sleep_for(200ms);
  expect_error<CommunicationError>([&] { make_shared_memory_communicator(dup(segment.get()), 1, 2); },
                                   {"rank 1", "joined already", std::to_string(first)});
  const pid_t zero =
      start_process([&] { make_shared_memory_communicator(dup(segment.get()), 0, 2)->barrier(); });
  EXPECT_EQ(wait_for(first), 0);
  EXPECT_EQ(wait_for(zero), 0);
}

TEST(Faults, AnotherWorldSizeIsAnErrorOnEveryRank) {
  const FileDescriptor segment(make_shared_segment(2));
  const pid_t zero = start_process([&] {
    expect_error<RelayedError>([&] { make_shared_memory_communicator(dup(segment.get()), 0, 2); },
                               {"rank 1", "world size is 3", "rank 0", "2"});
  });
  std::this_thread::sleep_for(100ms);
  expect_error<CommunicationError>([&] { make_shared_memory_communicator(dup(segment.get()), 1, 3); },
                                   {"rank 1", "world size is 3"});
  EXPECT_EQ(wait_for(zero), 0);
}

TEST(Faults, ADescriptorThatIsNoSegmentIsRefused) {
  expect_error<CommunicationError>([] { make_shared_memory_communicator(dup(STDIN_FILENO), 0, 2); },
                                   {"descriptor", "not the shared memory"});
  expect_error<CommunicationError>([] { make_shared_memory_communicator(987, 0, 2); }, {"descriptor 987"});
  expect_error<ConfigError>([] { make_shared_segment(0); }, {"at least 1 rank"});
}

// More ranks than cores, one of which is late: the others sleep instead of burning the cores.
TEST(Faults, LongWaitsLeaveTheCoresToOthers) {
  run_processes(3, [](Communicator& communicator) {
    communicator.barrier();
    if (communicator.rank() == 0) {
      std::this_thread::sleep_for(1s);
      return communicator.barrier();
    }
    const std::clock_t before = std::clock();
    communicator.barrier();
    EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 4);
  });
}

}  // namespace
}  // namespace annulus
