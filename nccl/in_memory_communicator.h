// Ranks that are threads of one process: for tests, and for embedding several ranks in one program.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "nccl/communicator.h"

namespace annulus {

/// Communicators of ranks 0 .. world_size - 1, to be used by one thread each. They run the very algorithms
/// of the shared-memory communicator, on memory of this process. A rank that waits longer than `deadline`
/// for another throws CommunicationError that names it.
std::vector<std::unique_ptr<Communicator>> make_in_memory_communicators(
    int world_size, std::chrono::milliseconds deadline = kDefaultDeadline);

}  // namespace annulus
