// The run of one rank, from connected ranks to the final summary.
#pragma once

#include <string>
#include <vector>

#include "nccl/communicator.h"
#include "nccl/rank_environment.h"

namespace annulus {

/// Sets up, trains and evaluates as `arguments` say. Returns the signal by which the user stopped the run,
/// which has then saved its state, or 0. Throws on every rank if anything fails on one.
int run_training(Communicator& communicator, const RankEnvironment& environment,
                 const std::vector<std::string>& arguments);

}  // namespace annulus
