#include "bench/rank_processes.h"

#include <fmt/core.h>
#include <omp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include "core/base/error.h"
#include "nccl/shared_memory_communicator.h"

namespace annulus::bench {
namespace {

/// One result per rank, in memory that forked processes share.
class SharedResults {
 public:
  SharedResults(int ranks, std::size_t result_bytes)
      : result_bytes_(result_bytes), bytes_(static_cast<std::size_t>(ranks) * result_bytes) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require<CommunicationError>(memory != MAP_FAILED, "no shared memory for the results of {} ranks", ranks);
    results_ = static_cast<std::byte*>(memory);
  }
  ~SharedResults() { munmap(results_, bytes_); }
  SharedResults(const SharedResults&) = delete;
  SharedResults& operator=(const SharedResults&) = delete;

  void* of(int rank) { return results_ + static_cast<std::size_t>(rank) * result_bytes_; }
  void copy_to(void* results) const { std::memcpy(results, results_, bytes_); }

 private:
  std::size_t result_bytes_;
  std::size_t bytes_;  // of all ranks
  std::byte* results_ = nullptr;
};

/// The life of a forked rank; returns its exit status.
int run_rank(int segment, int rank, int ranks, const std::function<void(Communicator&, void*)>& work,
             void* result) {
  try {
    pin_to_core(rank);
    omp_set_num_threads(1);
    const auto communicator =
        ranks == 1 ? make_identity_communicator() : make_shared_memory_communicator(segment, rank, ranks);
    try {
      work(*communicator, result);
    } catch (const RelayedError&) {
      return 1;  // the rank at fault reports
    } catch (const std::exception& error) {
      communicator->abort(error.what());
      throw;
    }
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", rank, error.what());
    return 1;
  }
}

}  // namespace

void pin_to_core(int rank) {
  cpu_set_t allowed, own;
  CPU_ZERO(&own);
  require<DeviceError>(sched_getaffinity(0, sizeof allowed, &allowed) == 0, "cannot read the CPU affinity");
  int skip = rank % CPU_COUNT(&allowed);
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed) && skip-- == 0) CPU_SET(core, &own);
  require<DeviceError>(sched_setaffinity(0, sizeof own, &own) == 0, "cannot pin rank {} to a core", rank);
}

void run_rank_processes(int ranks, std::size_t result_bytes,
                        const std::function<void(Communicator&, void*)>& work, void* results) {
  SharedResults shared(ranks, result_bytes);
  const int segment = ranks == 1 ? -1 : make_shared_segment(ranks);
  std::fflush(nullptr);  // or every rank would write the buffered output again
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t process = fork();
    require<CommunicationError>(process >= 0, "cannot start rank {}", rank);
    if (process == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // no rank outlives an interrupted bench
      const int status = run_rank(segment, rank, ranks, work, shared.of(rank));
      std::fflush(nullptr);
      _exit(status);
    }
    processes.push_back(process);
  }
  if (segment >= 0) close(segment);
  bool failed = false;
  for (const pid_t process : processes) {
    int status = 0;
    waitpid(process, &status, 0);
    failed = failed || status != 0;
  }
  require<CommunicationError>(!failed, "a rank failed; its own message is above");
  shared.copy_to(results);
}

}  // namespace annulus::bench
