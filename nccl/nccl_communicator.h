// Ranks that have a CUDA device each and talk over NCCL.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "nccl/communicator.h"

namespace annulus {

/// True if this build has NCCL.
bool has_nccl();

/// See Communicator; for memory of `device`, one device per rank. To be called by every rank of `host`, which
/// outlives the result: rank 0's NCCL id travels through it, and a rank that fails fails it too, so that the
/// others need not wait for the deadline. all_reduce_sum adds in the fixed tree: each rank receives its slice
/// from all others, adds, and gathers the other slices, so that the bits are those of the ranks of a host.
///
/// Calls return once the work is submitted. Every wait of the host ends, with CommunicationError when NCCL
/// reports an error, when a peer fails, or after `deadline`; the communicator is then aborted and of no more
/// use. The destructor waits for all ranks in the same way, but aborts during the unwinding of an exception.
/// abort() by another thread than the one that made the communicator takes effect when that one waits next.
///
/// Large sums go piece by piece through at most `workspace_bytes` of device memory, or a little more; it is
/// allocated when it is first needed and then kept. With one rank this is the identity communicator. Throws
/// ConfigError if the build has no NCCL or `device` is none of CUDA's.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, Device device,
                                                     std::chrono::milliseconds deadline = kDefaultDeadline,
                                                     std::size_t workspace_bytes = std::size_t{64} << 20);

}  // namespace annulus
