// From a rank environment to a communicator.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>

#include "nccl/communicator.h"
#include "nccl/rank_environment.h"

namespace annulus {

/// Connects this process with the other ranks of its run and returns when all are there: the identity for
/// world size 1, shared memory otherwise. While ranks are missing, `progress` (if given) is told about once
/// in five seconds which ones, in a line for the user. Throws CommunicationError that names the missing ranks
/// after `deadline`, which is also the limit of every later wait, and if the ranks are spread over hosts.
std::unique_ptr<Communicator> connect(const RankEnvironment& environment,
                                      std::chrono::milliseconds deadline = kDefaultDeadline,
                                      const std::function<void(std::string_view)>& progress = {});

}  // namespace annulus
