// What is known about every byte of a memory region that kernels use: whether it may be touched, whether it
// has been written, and who touched it last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>

namespace virtual_gpu {

enum class ByteState : std::uint8_t { outside = 0, unwritten = 1, written = 2, freed = 3 };

/// A device thread at one moment: accesses of two of them are ordered only by barriers.
struct Moment {
  std::uint32_t launch = 0;       ///< serial number of the launch (of the block, for shared memory); 0: never
  std::uint32_t block = 0;        ///< in its grid
  std::uint32_t epoch = 0;        ///< block barriers passed
  std::uint32_t thread : 10 = 0;  ///< in its block
  std::uint32_t warp_epoch : 22 = 0;  ///< warp barriers passed
};

/// Who read. Readers that no barrier orders are merged: into "several lanes of a warp" or "several warps", or
/// "several blocks".
enum class Readers : std::uint8_t { one, lanes, warps, blocks };

/// The last accesses to one 4-byte word, or to a half or a byte of it.
struct History {
  Moment write;
  Moment read;
  Readers readers = Readers::one;
  bool split = false;  ///< its halves have histories of their own, because some access was narrower
};

/// An access that no barrier orders with a later one, and the first byte that both touch.
struct Race {
  const Moment* earlier = nullptr;
  const void* at = nullptr;
};

/// Gives back the whole pages of a range, which reads as zeros from now on.
void drop_pages(void* data, std::size_t bytes);

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
  ByteState state(const void* address) const {
    const ByteState here = states_[offset(address)];
    return here != ByteState::outside || sparse_.empty() ? here : sparse_state(address);
  }
  void set(const void* address, std::size_t bytes, ByteState state);
  void copy(const void* to, const void* from, std::size_t bytes, const Shadow& other);

  /// Forgets what is known of a range of whole pages: from now on all of it has this state. Takes no memory.
  void set_sparse(const void* address, std::size_t bytes, ByteState state);

  /// True if all of a small range is written or, for a write, unwritten throughout each of its words: the
  /// usual case, decided fast. False says nothing.
  bool is_plainly_fine(const void* address, std::size_t bytes, bool is_write) const {
    if (offset(address) + bytes > bytes_) return false;
    const ByteState* const states = states_ + offset(address);
    if (bytes == 2) return is_uniform<std::uint16_t>(states, 0x0101, is_write);
    if (bytes == 1) return is_uniform<std::uint8_t>(states, 0x01, is_write);
    for (std::size_t i = 0; i < bytes; i += 4)
      if (!is_uniform<std::uint32_t>(states + i, 0x01010101, is_write)) return false;
    return true;
  }

  /// First byte of the range that is not allocated, or null.
  const void* first_forbidden(const void* address, std::size_t bytes) const;
  /// First byte of the range that was never written, or null.
  const void* first_unwritten(const void* address, std::size_t bytes) const;

  /// Gives back the pages of the range's histories.
  void drop_histories(const void* address, std::size_t bytes);

  /// Enters an access in the histories. Returns the earlier access that it races with, or {}.
  Race enter(const void* address, std::size_t bytes, const Moment& now, bool is_write);

 private:
  static constexpr std::size_t kWordBytes = 4;
  static constexpr std::size_t kWordsPerChunk = 1024;

  struct SparseRange {
    std::uintptr_t end;
    ByteState state;
  };

  /// Histories of the parts of some words, used once they are split: apart, because bytes seldom are.
  struct Chunk {
    History halves[kWordsPerChunk][2];
    History bytes[kWordsPerChunk][4];
  };

  /// A word, a half or a byte that an access touches.
  struct Unit {
    History& history;
    std::size_t begin, bytes;  ///< within its word
    History* halves;           ///< of its word
    History* quarters;
    Unit child(std::size_t which) const;
  };

  std::size_t offset(const void* address) const { return reinterpret_cast<std::uintptr_t>(address) - base_; }
  ByteState sparse_state(const void* address) const;
  std::size_t chunk_count() const { return bytes_ / (kWordBytes * kWordsPerChunk) + 1; }
  Unit unit(std::size_t word);
  static bool is_idle(const Unit& unit, const Moment& now);
  static Race enter_part(const Unit& unit, std::size_t begin, std::size_t end, const Moment& now,
                         bool is_write);

  template <class Word>
  static bool is_uniform(const ByteState* states, Word ones, bool is_write) {
    Word word;
    std::memcpy(&word, states, sizeof word);
    return word == static_cast<Word>(2 * ones) || (is_write && word == ones);
  }

  std::uintptr_t base_;
  std::size_t bytes_;
  ByteState* states_;
  History* histories_;                            // of words
  Chunk** chunks_;                                // null until a word of theirs is split
  std::map<std::uintptr_t, SparseRange> sparse_;  // by start: states where states_ says outside
};

}  // namespace virtual_gpu
