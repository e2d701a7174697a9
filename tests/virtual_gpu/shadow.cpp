#include "shadow.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "report.h"

namespace virtual_gpu {
namespace {

constexpr std::uint32_t kWarpSize = 32;
constexpr std::size_t kPageBytes = 4096;

void* reserve(std::size_t bytes) {
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) report(nullptr, "cannot reserve {} bytes of address space", bytes);
  return memory;
}

// Whether nothing orders the two. They are different threads of one launch.
bool unordered(const Moment& before, const Moment& now) {
  if (before.block != now.block) return true;
  if (before.epoch != now.epoch) return false;
  return before.thread / kWarpSize != now.thread / kWarpSize || before.warp_epoch == now.warp_epoch;
}

bool same_thread(const Moment& a, const Moment& b) { return a.block == b.block && a.thread == b.thread; }

bool write_races_with_readers(const History& history, const Moment& now) {
  const Moment& read = history.read;
  if (read.launch != now.launch) return false;
  switch (history.readers) {
    case Readers::blocks:
      return true;
    case Readers::warps:
      return read.block != now.block || read.epoch == now.epoch;
    case Readers::lanes:
      return unordered(read, now);
    case Readers::one:
      return !same_thread(read, now) && unordered(read, now);
  }
  return false;
}

void enter_read(History& history, const Moment& now) {
  const Moment& read = history.read;
  if (history.readers == Readers::one && read.launch == now.launch && same_thread(read, now) &&
      read.epoch == now.epoch && read.warp_epoch == now.warp_epoch)
    return;
  Readers readers = Readers::one;
  if (read.launch == now.launch) {
    if (history.readers == Readers::blocks || read.block != now.block)
      readers = Readers::blocks;
    else if (read.epoch == now.epoch) {
      if (history.readers == Readers::warps || read.thread / kWarpSize != now.thread / kWarpSize)
        readers = Readers::warps;
      else if (read.warp_epoch == now.warp_epoch &&
               (history.readers == Readers::lanes || read.thread != now.thread))
        readers = Readers::lanes;
    }
  }
  history.read = now;
  history.readers = readers;
}

// Enters an access. Returns null, or the earlier access that it races with.
inline const Moment* race(History& history, const Moment& now, bool is_write) {
  if (history.write.launch == now.launch && !same_thread(history.write, now) && unordered(history.write, now))
    return &history.write;
  if (is_write) {
    if (write_races_with_readers(history, now)) return &history.read;
    history.write = now;
  } else {
    enter_read(history, now);
  }
  return nullptr;
}

}  // namespace

void drop_pages(void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = (begin + kPageBytes - 1) / kPageBytes * kPageBytes;
  const std::uintptr_t end = (begin + bytes) / kPageBytes * kPageBytes;
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

Shadow::Shadow(void* base, std::size_t bytes)
    : base_(reinterpret_cast<std::uintptr_t>(base)),
      bytes_(bytes),
      states_(static_cast<ByteState*>(reserve(bytes))),
      histories_(static_cast<History*>(reserve(bytes / kWordBytes * sizeof(History)))),
      chunks_(static_cast<Chunk**>(reserve(chunk_count() * sizeof(Chunk*)))) {}

Shadow::~Shadow() {
  munmap(states_, bytes_);
  munmap(histories_, bytes_ / kWordBytes * sizeof(History));
  munmap(chunks_, chunk_count() * sizeof(Chunk*));  // the chunks themselves go with the process
}

void Shadow::set(const void* address, std::size_t bytes, ByteState state) {
  std::memset(static_cast<void*>(states_ + offset(address)), static_cast<int>(state), bytes);
}

void Shadow::copy(const void* to, const void* from, std::size_t bytes, const Shadow& other) {
  std::memmove(static_cast<void*>(states_ + offset(to)), other.states_ + other.offset(from), bytes);
  if (other.sparse_.empty()) return;
  for (std::size_t i = 0; i < bytes; ++i)
    if (states_[offset(to) + i] == ByteState::outside)
      states_[offset(to) + i] = other.state(static_cast<const char*>(from) + i);
}

void Shadow::set_sparse(const void* address, std::size_t bytes, ByteState state) {
  madvise(states_ + offset(address), bytes, MADV_DONTNEED);  // zeros again: outside
  drop_histories(address, bytes);
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  sparse_[begin] = {begin + bytes, state};
}

void Shadow::drop_histories(const void* address, std::size_t bytes) {
  drop_pages(histories_ + offset(address) / kWordBytes, bytes / kWordBytes * sizeof(History));
}

ByteState Shadow::sparse_state(const void* address) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const auto next = sparse_.upper_bound(at);
  if (next == sparse_.begin() || std::prev(next)->second.end <= at) return ByteState::outside;
  return std::prev(next)->second.state;
}

const void* Shadow::first_forbidden(const void* address, std::size_t bytes) const {
  for (std::size_t i = 0; i < bytes; ++i) {
    const char* const at = static_cast<const char*>(address) + i;
    if (!contains(at) || state(at) == ByteState::outside || state(at) == ByteState::freed) return at;
  }
  return nullptr;
}

const void* Shadow::first_unwritten(const void* address, std::size_t bytes) const {
  for (std::size_t i = 0; i < bytes; ++i) {
    const char* const at = static_cast<const char*>(address) + i;
    if (state(at) != ByteState::written) return at;
  }
  return nullptr;
}

Shadow::Unit Shadow::unit(std::size_t word) {
  Chunk*& chunk = chunks_[word / kWordsPerChunk];
  if (chunk == nullptr) chunk = static_cast<Chunk*>(reserve(sizeof(Chunk)));
  const std::size_t i = word % kWordsPerChunk;
  return {histories_[word], 0, kWordBytes, chunk->halves[i], chunk->bytes[i]};
}

Shadow::Unit Shadow::Unit::child(std::size_t which) const {
  const std::size_t half = bytes / 2, at = begin + which * half;
  return {half == 1 ? quarters[at] : halves[which], at, half, halves, quarters};
}

// Whether nothing of the running launch is in a history.
bool Shadow::is_idle(const Unit& unit, const Moment& now) {
  if (unit.history.split) return is_idle(unit.child(0), now) && is_idle(unit.child(1), now);
  return unit.history.write.launch != now.launch && unit.history.read.launch != now.launch;
}

Race Shadow::enter(const void* address, std::size_t bytes, const Moment& now, bool is_write) {
  const std::size_t begin = offset(address), end = begin + bytes;
  for (std::size_t at = begin, next; at < end; at = next) {
    const std::size_t word = at / kWordBytes, start = word * kWordBytes;
    next = std::min(end, start + kWordBytes);
    History& history = histories_[word];
    if (next - at == kWordBytes && !history.split) {
      if (const Moment* const earlier = race(history, now, is_write))
        return {earlier, reinterpret_cast<const void*>(base_ + at)};
    } else {
      const Race found = enter_part(unit(word), at - start, next - start, now, is_write);
      if (found.earlier != nullptr)
        return {found.earlier,
                reinterpret_cast<const char*>(base_ + start) + reinterpret_cast<std::uintptr_t>(found.at)};
    }
  }
  return {};
}

// Bytes [begin, end) of a word, which overlap the unit. A history covers all of its unit, or is split; it is
// whole again once an access to all of it finds nothing of its own launch.
Race Shadow::enter_part(const Unit& unit, std::size_t begin, std::size_t end, const Moment& now,
                        bool is_write) {
  const bool covered = begin <= unit.begin && unit.begin + unit.bytes <= end;
  if (covered && unit.history.split && is_idle(unit, now)) unit.history = {};
  if (covered && !unit.history.split)
    return {race(unit.history, now, is_write), reinterpret_cast<const void*>(unit.begin)};
  if (!unit.history.split) {
    unit.child(0).history = unit.child(1).history = unit.history;
    unit.history.split = true;
  }
  const std::size_t middle = unit.begin + unit.bytes / 2;
  if (begin < middle)
    if (const Race found = enter_part(unit.child(0), begin, end, now, is_write); found.earlier != nullptr)
      return found;
  if (end > middle) return enter_part(unit.child(1), begin, end, now, is_write);
  return {};
}

}  // namespace virtual_gpu
