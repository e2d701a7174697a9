// Where the shared memory of a group of ranks comes from: a mapped segment for processes, the heap for
// threads. Everything above this is the same for both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace annulus {

/// One rank's access to the memory of its group.
class GroupMemory {
 public:
  virtual ~GroupMemory() = default;

  /// SharedLayout::bytes() of memory, zeros before the first rank joined.
  virtual std::byte* base() const = 0;

  /// The piece that begins at `start`: one part of `part_bytes` (whole pages) for each rank, the same memory
  /// on every rank. All ranks ask for the same pieces in the same order. Throws DeviceError.
  virtual std::shared_ptr<std::byte> piece(std::uint64_t start, std::size_t part_bytes) = 0;

  /// This rank's part of the piece is no longer needed by any rank.
  virtual void discard_part(std::uint64_t start, std::size_t part_bytes) noexcept = 0;

  /// False once the process of a rank that has joined is gone.
  virtual bool alive(int rank) const = 0;
};

}  // namespace annulus
