// Ranks of a bench: processes of this host, one per core, that work together and give one result each.
#pragma once

#include <functional>
#include <vector>

#include "nccl/communicator.h"

namespace annulus::bench {

/// What one rank measured. Plain numbers, because they cross from process to process in shared memory.
struct RankResult {
  std::size_t steps = 0;
  double seconds = 0;                                                          ///< of all steps
  double input = 0, forward = 0, backward = 0, communication = 0, update = 0;  ///< their split
  double loss_before = 0, loss_after = 0;  ///< of the first step and of the last
  double fma_peak = 0;                     ///< GFLOP/s of the rank's core around the measurement
};

/// Runs `work` in `ranks` forked processes with one compute thread each, rank r on the r-th core that this
/// process may use (counted round), and returns the results by rank. Throws CommunicationError if a rank
/// fails, after that rank has said why on stderr. The calling process must not have started threads.
std::vector<RankResult> run_ranks(int ranks, const std::function<RankResult(Communicator&)>& work);

}  // namespace annulus::bench
