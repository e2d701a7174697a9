// Runs the ranks of a group, as threads of this process or as processes of their own.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "nccl/file_descriptor.h"
#include "nccl/in_memory_communicator.h"
#include "nccl/shared_memory_communicator.h"

namespace annulus::test {

using RankBody = std::function<void(Communicator&)>;

/// One thread per rank; a rank that throws aborts the group. Rethrows the first failure.
inline void run_threads(int world_size, const RankBody& body,
                        std::chrono::milliseconds deadline = kDefaultDeadline) {
  auto ranks = make_in_memory_communicators(world_size, deadline);
  std::vector<std::exception_ptr> failures(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(*ranks[rank]);
      } catch (const std::exception& error) {
        failures[rank] = std::current_exception();
        ranks[rank]->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

/// Starts a process that runs `body` and ends with 0, or with 1 if it throws or an expectation fails in it.
inline pid_t start_process(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child != 0) return child;
  alarm(120);  // a rank that hangs fails the test instead of stopping it
  int status = 0;
  try {
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "process %d threw: %s\n", getpid(), error.what());
    status = 1;
  }
  if (::testing::Test::HasFailure()) status = 1;
  std::fflush(nullptr);
  _exit(status);
}

/// The wait status of a process, which is gone afterwards.
inline int wait_for(pid_t process) {
  int status = -1;
  EXPECT_EQ(waitpid(process, &status, 0), process);
  return status;
}

/// One process per rank of a segment that is made here. Returns the processes, rank by rank.
inline std::vector<pid_t> start_ranks(int world_size, const RankBody& body,
                                      std::chrono::milliseconds deadline = kDefaultDeadline) {
  const FileDescriptor segment(make_shared_segment(world_size));
  std::vector<pid_t> processes;
  for (int rank = 0; rank < world_size; ++rank) {
    processes.push_back(start_process(
        [&] { body(*make_shared_memory_communicator(segment.get(), rank, world_size, deadline)); }));
  }
  return processes;
}

/// Runs the ranks as processes and expects all to succeed.
inline void run_processes(int world_size, const RankBody& body,
                          std::chrono::milliseconds deadline = kDefaultDeadline) {
  const std::vector<pid_t> processes = start_ranks(world_size, body, deadline);
  for (std::size_t rank = 0; rank < processes.size(); ++rank) {
    EXPECT_EQ(wait_for(processes[rank]), 0) << "rank " << rank << " of " << world_size;
  }
}

/// Both ways, one after the other.
inline void run_ranks(int world_size, const RankBody& body) {
  run_threads(world_size, body);
  run_processes(world_size, body);
}

}  // namespace annulus::test
