// Ranks of a bench: processes of this host, one per core, that work together and give one result each.
#pragma once

#include <cstddef>
#include <functional>
#include <type_traits>
#include <vector>

#include "nccl/communicator.h"

namespace annulus::bench {

/// Binds the calling thread to the core of a rank: the rank-th that the thread may use, counted round.
void pin_to_core(int rank);

/// What run_ranks() is without types: `work` writes its result to `result_bytes` bytes that start as zeros,
/// and `results` receives those of all ranks.
void run_rank_processes(int ranks, std::size_t result_bytes,
                        const std::function<void(Communicator&, void* result)>& work, void* results);

/// Runs `work(communicator)` in `ranks` forked processes with one compute thread each, pinned to its core,
/// and returns the results by rank: plain numbers, because they cross from process to process in shared
/// memory. Throws CommunicationError if a rank fails, after that rank has said why on stderr. The calling
/// process must not have threads running.
template <class Work>
auto run_ranks(int ranks, const Work& work) {
  using Result = std::invoke_result_t<const Work&, Communicator&>;
  static_assert(std::is_trivially_copyable_v<Result>);
  std::vector<Result> results(static_cast<std::size_t>(ranks));
  run_rank_processes(
      ranks, sizeof(Result),
      [&work](Communicator& communicator, void* result) {
        *static_cast<Result*>(result) = work(communicator);
      },
      results.data());
  return results;
}

}  // namespace annulus::bench
