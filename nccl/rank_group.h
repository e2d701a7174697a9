// The ranks of one host in lock step: joining, and the points at which each waits for all others.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "nccl/control_block.h"
#include "nccl/group_failure.h"
#include "nccl/group_memory.h"

namespace annulus {

/// One rank's view of the group. `memory` outlives it. One thread makes the calls, except abort(). Every wait
/// ends: with CommunicationError when the group fails, when a peer dies or leaves, or after `deadline`.
class RankGroup {
 public:
  RankGroup(GroupMemory& memory, int rank, int world_size, std::chrono::milliseconds deadline);

  /// Says that this rank is here and returns once all are. Calls `pause` (some milliseconds) between looks,
  /// and tells `progress` (if given) every five seconds which ranks are missing.
  void join(const std::function<void()>& pause, const std::function<void(std::string_view)>& progress);

  /// Says that this rank makes no further calls. A peer that waits for it gets an error.
  void leave() noexcept;

  /// Posts this rank's next collective and returns once every rank has posted one. Throws on every rank if
  /// they differ in kind, count, dtype or root.
  void begin(const CollectiveCall& call);

  /// True if every rank has posted the same location and it is not private. Valid after begin().
  bool same_location() const;

  /// Returns once every rank has come here as often as this one. What any rank wrote before, all see after.
  void synchronise();

  /// Throws if the group has failed.
  void check() const { failure_.check(); }

  /// Fails the group, see Communicator::abort.
  void abort(std::string_view reason) noexcept;

 private:
  const CollectiveCall& call_of(int rank) const { return slots_[rank].calls[number_ % 2]; }
  bool reached(int rank) const;
  void wait_for(int rank);
  void wait_long(int rank);
  void sleep_until_change(int rank);
  int find_lost_peer(const std::function<bool(int)>& arrived) const;
  std::string describe_loss(int rank) const;
  std::string describe(const CollectiveCall& call) const;
  std::string current_call() const;

  GroupMemory& memory_;
  RankSlot* slots_;
  GroupFailure failure_;
  int rank_;
  int world_size_;
  std::chrono::milliseconds deadline_;
  int spins_;
  std::uint32_t phase_ = 0;   // synchronisation points reached
  std::uint64_t number_ = 0;  // collectives called
};

}  // namespace annulus
