// Ranks that a foreign launcher started find each other by nothing but their environment.
#include "nccl/rendezvous.h"

#include <dirent.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "nccl/connect.h"
#include "tests/nccl/run_ranks.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

using namespace std::chrono_literals;
using test::expect_error;
using test::start_process;
using test::wait_for;

RankEnvironment rank_of(int rank, int world_size, const std::string& job) {
  return {.rank = rank,
          .local_rank = rank,
          .world_size = world_size,
          .local_world_size = world_size,
          .launcher = "torchrun",
          .job = job + " of test process " + std::to_string(getppid())};
}

std::set<std::string> shared_memory_files() {
  std::set<std::string> names;
  if (DIR* const directory = opendir("/dev/shm")) {
    while (const dirent* entry = readdir(directory)) names.insert(entry->d_name);
    closedir(directory);
  }
  return names;
}

void use(Communicator& communicator) {
  float sum = 1.0f;
  communicator.all_reduce_sum(&sum, 1, DType::f32, {});
  EXPECT_EQ(sum, static_cast<float>(communicator.world_size()));
}

TEST(Rendezvous, RanksMeetInAnyOrderOfArrivalAndLeaveNothing) {
  const auto before = shared_memory_files();
  for (const std::vector<int>& order : {std::vector<int>{0, 1, 2, 3}, {3, 2, 1, 0}}) {
    std::vector<pid_t> processes;
    for (const int rank : order) {
      processes.push_back(start_process([&] { use(*connect(rank_of(rank, 4, "any order"))); }));
      std::this_thread::sleep_for(50ms);
    }
    for (const pid_t process : processes) EXPECT_EQ(wait_for(process), 0);
  }
  EXPECT_EQ(shared_memory_files(), before);
}

TEST(Rendezvous, JobsDoNotMeet) {
  std::vector<pid_t> processes;
  for (const char* job : {"one", "two"}) {
    for (int rank = 0; rank < 2; ++rank) {
      processes.push_back(start_process([&] { use(*connect(rank_of(rank, 2, job))); }));
    }
  }
  for (const pid_t process : processes) EXPECT_EQ(wait_for(process), 0);
}

TEST(Rendezvous, ARunAfterAKilledOneFindsNothingStale) {
  for (int round = 0; round < 2; ++round) {
    const pid_t zero = start_process([] { connect(rank_of(0, 3, "killed")); });
    const pid_t one = start_process([] { connect(rank_of(1, 3, "killed")); });
    std::this_thread::sleep_for(200ms);
    for (const pid_t process : {zero, one}) kill(process, SIGKILL);
    for (const pid_t process : {zero, one}) wait_for(process);
  }
  std::vector<pid_t> processes;
  for (int rank = 0; rank < 3; ++rank) {
    processes.push_back(start_process([&] { use(*connect(rank_of(rank, 3, "killed"))); }));
  }
  for (const pid_t process : processes) EXPECT_EQ(wait_for(process), 0);
}

TEST(Rendezvous, RankZeroNamesTheMissing) {
  const pid_t zero = start_process([] {
    expect_error<CommunicationError>([] { connect(rank_of(0, 3, "missing"), 500ms); }, {"3 ranks", "rank 2"});
  });
  const pid_t one = start_process(
      [] { expect_error<CommunicationError>([] { connect(rank_of(1, 3, "missing"), 500ms); }, {"rank 2"}); });
  EXPECT_EQ(wait_for(zero), 0);
  EXPECT_EQ(wait_for(one), 0);
}

TEST(Rendezvous, AMissingRankZeroIsNamed) {
  expect_error<CommunicationError>([] { connect(rank_of(1, 2, "no rank 0"), 200ms); },
                                   {"rank 0", "no rank 0"});
}

TEST(Rendezvous, ASecondRankZeroIsRefused) {
  const SegmentOffer first("taken", 0, 0ms);
  expect_error<CommunicationError>([] { SegmentOffer("taken", 0, 100ms); }, {"rank 0", "taken"});
}

TEST(Rendezvous, SeveralHostsAreRefused) {
  RankEnvironment environment = rank_of(0, 4, "hosts");
  environment.local_world_size = 2;
  expect_error<CommunicationError>([&] { connect(environment); },
                                   {"torchrun", "4 ranks", "2 on this host", "one host"});
}

}  // namespace
}  // namespace annulus
