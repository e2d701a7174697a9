// The memory that the ranks of one host meet in. It starts as zeros, lives in a mapped segment or on the
// heap, and holds, in this order: the control block, one slot per rank, the staging areas, and (in a segment)
// the pieces that allocate() hands out.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/base/dtype.h"

namespace annulus {

enum class CollectiveKind : std::uint8_t { none, barrier, all_reduce, broadcast, all_gather, allocate };

/// What one rank says about the collective that it has called.
struct CollectiveCall {
  /// `location` of memory that did not come from allocate().
  static constexpr std::uint64_t kPrivate = ~std::uint64_t{0};

  CollectiveKind kind = CollectiveKind::none;
  DType dtype = DType::u8;
  std::int32_t root = 0;              ///< of a broadcast
  std::uint64_t count = 0;            ///< elements
  std::uint64_t location = kPrivate;  ///< of the data: the piece's start + the offset in the rank's part
};

enum class RankState : std::uint32_t { absent, joined, left };

/// Written by its own rank only. The first line is what peers look at in every collective.
struct alignas(64) RankSlot {
  /// How many synchronisation points the rank has reached (modulo 2^32), and the word that sleepers wait on.
  std::atomic<std::uint32_t> phase;
  std::atomic<std::uint32_t> sleepers;  ///< peers that may be asleep on `phase` (written by them)

  /// The calls with even and odd numbers: a rank may post the next one while peers still read the last.
  CollectiveCall calls[2];

  alignas(64) std::atomic<RankState> state;
  std::atomic<std::int32_t> pid;
};

enum class FailureState : std::uint32_t { none, writing, ready };

struct ControlBlock {
  static constexpr std::uint64_t kMagic = 0x31656c756e6e61ull;  // "annule1": also the layout's version

  std::uint64_t magic;
  std::int32_t world_size;
  std::atomic<FailureState> failure;  ///< set once, by the rank that finds the group's first failure
  std::int32_t failure_rank;          ///< that rank
  char failure_text[1000];            ///< what it says
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(CollectiveCall) == 24 &&
              sizeof(RankSlot) == 128);

/// Where things are in the shared memory of `world_size` ranks. Offsets in bytes.
struct SharedLayout {
  /// Each rank has two staging areas, used in turn: large enough to amortise a synchronisation, small enough
  /// for the second-level cache.
  static constexpr std::size_t kStagingBytes = std::size_t{256} << 10;
  static constexpr std::size_t kPage = 4096;

  int world_size = 1;

  std::size_t slots() const { return round_up(sizeof(ControlBlock), alignof(RankSlot)); }
  std::size_t staging() const {
    return round_up(slots() + static_cast<std::size_t>(world_size) * sizeof(RankSlot), kPage);
  }
  std::size_t staging(int rank, int half) const {
    return staging() + (static_cast<std::size_t>(rank) * 2 + static_cast<std::size_t>(half)) * kStagingBytes;
  }
  std::size_t bytes() const { return staging(world_size, 0); }

  static std::size_t round_up(std::size_t value, std::size_t unit) {
    return (value + unit - 1) / unit * unit;
  }
};

}  // namespace annulus
