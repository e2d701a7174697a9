// How ranks that a foreign launcher started get at the segment of their run: rank 0 hands its descriptor out
// over a Unix socket in the abstract namespace. The name vanishes with its owner, so nothing stale is ever
// found and nothing is left behind.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "nccl/file_descriptor.h"

namespace annulus {

/// Rank 0's side: listens under a name made from the user and `job` until it is destroyed.
class SegmentOffer {
 public:
  /// Waits up to `deadline` if an earlier run of the same job still has the name, then throws
  /// CommunicationError. `segment` stays the caller's.
  SegmentOffer(const std::string& job, int segment, std::chrono::milliseconds deadline);

  /// Gives the segment to every process of this user that asks within `limit`.
  void serve(std::chrono::milliseconds limit) const;

 private:
  FileDescriptor socket_;
  int segment_;
};

/// The other ranks' side: asks rank 0 of `job` for the segment until it answers. Tells `progress` (if given)
/// every five seconds that it waits; throws CommunicationError after `deadline`.
FileDescriptor receive_segment(const std::string& job, std::chrono::milliseconds deadline,
                               const std::function<void(std::string_view)>& progress);

}  // namespace annulus
