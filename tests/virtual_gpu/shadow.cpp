#include "shadow.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "report.h"

namespace virtual_gpu {
namespace {

constexpr std::uint32_t kWarpSize = 32;

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

bool write_races_with_readers(const WordHistory& history, const Moment& now) {
  const Moment& read = history.read;
  if (read.launch != now.launch) return false;
  switch (history.readers) {
    case WordHistory::Readers::blocks:
      return true;
    case WordHistory::Readers::warps:
      return read.block != now.block || read.epoch == now.epoch;
    case WordHistory::Readers::lanes:
      return unordered(read, now);
    case WordHistory::Readers::one:
      return !same_thread(read, now) && unordered(read, now);
  }
  return false;
}

void enter_read(WordHistory& history, const Moment& now) {
  using Readers = WordHistory::Readers;
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

}  // namespace

Shadow::Shadow(void* base, std::size_t bytes)
    : base_(reinterpret_cast<std::uintptr_t>(base)),
      bytes_(bytes),
      states_(static_cast<ByteState*>(reserve(bytes))),
      histories_(static_cast<WordHistory*>(reserve(bytes / 4 * sizeof(WordHistory)))) {}

Shadow::~Shadow() {
  munmap(states_, bytes_);
  munmap(histories_, bytes_ / 4 * sizeof(WordHistory));
}

void Shadow::set(const void* address, std::size_t bytes, ByteState state) {
  std::memset(static_cast<void*>(states_ + offset(address)), static_cast<int>(state), bytes);
}

void Shadow::copy(const void* to, const void* from, std::size_t bytes, const Shadow& other) {
  std::memmove(static_cast<void*>(states_ + offset(to)), other.states_ + other.offset(from), bytes);
}

const void* Shadow::first_forbidden(const void* address, std::size_t bytes) const {
  for (std::size_t i = 0; i < bytes; ++i) {
    const char* const at = static_cast<const char*>(address) + i;
    if (!contains(at) || state(at) == ByteState::outside || state(at) == ByteState::freed) return at;
  }
  return nullptr;
}

const void* Shadow::first_unwritten(const void* address, std::size_t bytes) const {
  const ByteState* const begin = states_ + offset(address);
  const ByteState* const end = begin + bytes;
  const ByteState* const found =
      std::find_if(begin, end, [](ByteState s) { return s != ByteState::written; });
  return found == end ? nullptr : static_cast<const char*>(address) + (found - begin);
}

const Moment* race(WordHistory& history, const Moment& now, bool is_write) {
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

}  // namespace virtual_gpu
