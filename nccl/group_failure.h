// How the failure of one rank reaches all: a record in the shared memory that is written once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "nccl/control_block.h"

namespace annulus {

/// One rank's view of the group's failure record, and the names under which ranks appear in messages.
class GroupFailure {
 public:
  GroupFailure(ControlBlock& control, RankSlot* slots, int rank, int world_size)
      : control_(control), slots_(slots), rank_(rank), world_size_(world_size) {}

  /// Throws if the group has failed: CommunicationError on the rank that recorded it, RelayedError elsewhere.
  void check() const {
    if (control_.failure.load(std::memory_order_acquire) != FailureState::none) [[unlikely]]
      throw_recorded();
  }

  /// Makes `text` the reason of the failure unless there is one already, and wakes all sleeping ranks.
  void record(std::string_view text) noexcept;

  /// Records `text` and throws what check() throws: the first reason wins on every rank.
  [[noreturn]] void fail(std::string_view text);

  /// "rank 3 (pid 4711)"; without the pid if it is a thread of this process.
  std::string name(int rank) const;

  /// The same for several: "rank 1 (pid 12), rank 2 (pid 13)".
  std::string names(const std::vector<int>& ranks) const;

 private:
  [[noreturn]] void throw_recorded() const;

  ControlBlock& control_;
  RankSlot* slots_;
  int rank_;
  int world_size_;
};

}  // namespace annulus
