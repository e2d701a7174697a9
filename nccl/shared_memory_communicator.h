// Ranks that are processes of one host, joined by a memory segment that has no name: it is a memfd, passed
// on by descriptor, so that nothing is ever left in /dev/shm, whatever happens to the processes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>

#include "nccl/communicator.h"

namespace annulus {

/// Makes the segment in which `world_size` ranks will meet and returns its descriptor, which is closed on
/// exec until the caller says otherwise. Throws ConfigError for a world size below 1 and CommunicationError
/// if the system refuses the memory.
int make_shared_segment(int world_size);

/// Joins the segment as `rank` and returns once all `world_size` ranks have. Takes over the descriptor. A
/// rank that waits longer than `deadline`, here or in a later collective, throws CommunicationError that
/// names the ranks that are missing; a process that dies is named within a second.
/// While ranks are missing, `progress` is told about every five seconds which ones.
/// All-reduce and broadcast are zero-copy for memory from allocate(); other host memory, and memory of CUDA
/// devices, goes through the segment in chunks.
std::unique_ptr<Communicator> make_shared_memory_communicator(
    int segment, int rank, int world_size, std::chrono::milliseconds deadline = kDefaultDeadline,
    const std::function<void(std::string_view)>& progress = {});

}  // namespace annulus
