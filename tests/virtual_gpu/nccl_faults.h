// What a test can do to the ranks of the virtual GPU's NCCL, beside what it can do to their devices.
#pragma once

#include <chrono>
#include <cstddef>

namespace virtual_gpu {

/// The rank of `device` dies in its nth launch from now on (1 is the next one; a group is one launch): every
/// call for its communicator returns ncclSystemError, and after a while its peers' ncclCommGetAsyncError says
/// ncclRemoteError. What they wait for never happens.
void kill_nccl_rank(int device, std::size_t nth);

/// The rank of `device` hangs in its nth launch from now on: it succeeds, but never starts, and nobody is
/// told.
void hang_nccl_rank(int device, std::size_t nth);

/// The nth launch of `device` from now on never starts, and its rank's ncclCommGetAsyncError says so with
/// ncclSystemError. The peers are not told.
void fail_nccl_rank(int device, std::size_t nth);

/// None of that happens any more to communicators that are made from now on.
void heal_nccl_ranks();

/// How long a thread waits for others to make a call that NCCL needs before that is reported as a hang. Time
/// counts only while nothing else can run. 60 seconds if never set.
void set_nccl_patience(std::chrono::milliseconds patience);

}  // namespace virtual_gpu
