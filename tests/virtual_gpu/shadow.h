// What is known about every byte of a memory region that kernels use: whether it may be touched, whether it
// has been written, and who touched it last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace virtual_gpu {

enum class ByteState : std::uint8_t { outside = 0, unwritten = 1, written = 2, freed = 3 };

/// A device thread at one moment: accesses of two of them are ordered only by barriers.
struct Moment {
  std::uint32_t launch = 0;      ///< serial number of the launch (of the block, for shared memory); 0: never
  std::uint32_t block = 0;       ///< in its grid
  std::uint32_t thread = 0;      ///< in its block
  std::uint32_t epoch = 0;       ///< block barriers passed
  std::uint32_t warp_epoch = 0;  ///< warp barriers passed
};

/// The last accesses to one 4-byte word. Readers that no barrier orders are merged: into "several lanes of a
/// warp" or "several warps", or "several blocks".
struct WordHistory {
  enum class Readers : std::uint32_t { one, lanes, warps, blocks };
  Moment write;
  Moment read;
  Readers readers = Readers::one;
};

/// Shadow of a region of address space. Pages of it exist only once they are used.
class Shadow {
 public:
  Shadow(void* base, std::size_t bytes);
  ~Shadow();
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;

  bool contains(const void* address) const {
    return reinterpret_cast<std::uintptr_t>(address) - base_ < bytes_;
  }
  ByteState state(const void* address) const { return states_[offset(address)]; }
  void set(const void* address, std::size_t bytes, ByteState state);
  void copy(const void* to, const void* from, std::size_t bytes, const Shadow& other);

  /// True if every whole word of a small range is written throughout, or, for a write, unwritten throughout:
  /// the usual case, decided fast. False says nothing.
  bool is_plainly_fine(const void* address, std::size_t bytes, bool is_write) const {
    if (bytes % 4 != 0 || offset(address) + bytes > bytes_) return false;
    constexpr std::uint32_t kUnwritten = 0x01010101, kWritten = 0x02020202;
    for (std::size_t i = 0; i < bytes; i += 4) {
      std::uint32_t word;
      std::memcpy(&word, states_ + offset(address) + i, 4);
      if (word != kWritten && !(is_write && word == kUnwritten)) return false;
    }
    return true;
  }

  /// First byte of the range that is not allocated, or null.
  const void* first_forbidden(const void* address, std::size_t bytes) const;
  /// First byte of the range that was never written, or null.
  const void* first_unwritten(const void* address, std::size_t bytes) const;

  WordHistory& history(const void* address) { return histories_[offset(address) / 4]; }

 private:
  std::size_t offset(const void* address) const { return reinterpret_cast<std::uintptr_t>(address) - base_; }

  std::uintptr_t base_;
  std::size_t bytes_;
  ByteState* states_;
  WordHistory* histories_;
};

/// Enters an access in a word's history. Returns null, or the earlier access that it races with.
const Moment* race(WordHistory& history, const Moment& now, bool is_write);

}  // namespace virtual_gpu
