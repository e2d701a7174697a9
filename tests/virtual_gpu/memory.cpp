#include "memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "report.h"

namespace virtual_gpu {
namespace {

constexpr std::size_t kRegionBytes = std::size_t{1} << 39;    // address space: nothing is used twice
constexpr std::size_t kCapacityBytes = std::size_t{2} << 30;  // live memory
constexpr std::size_t kAlignment = 256;                       // cudaMalloc's
constexpr std::size_t kGap = 1024;                            // at least, between allocations
constexpr std::size_t kPageBytes = 4096;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

char* reserve_region(int ordinal) {
  void* region =
      mmap(nullptr, kRegionBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) report(nullptr, "cannot reserve the memory of cuda:{}", ordinal);
  return static_cast<char*>(region);
}

// A key that no thread has access to until it asks for it. Without keys, the whole process has access or
// none.
int lock_region(char* region) {
  const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
  if (key >= 0)
    pkey_mprotect(region, kRegionBytes, PROT_READ | PROT_WRITE, key);
  else
    mprotect(region, kRegionBytes, PROT_NONE);
  return key;
}

}  // namespace

DeviceMemory::DeviceMemory(int ordinal)
    : ordinal_(ordinal),
      base_(reserve_region(ordinal)),
      key_(lock_region(base_)),
      shadow_(base_, kRegionBytes) {}

DeviceMemory::~DeviceMemory() {
  munmap(base_, kRegionBytes);
  if (key_ >= 0) pkey_free(key_);
}

void* DeviceMemory::allocate(std::size_t bytes) {
  const std::size_t begin = round_up(used_ + kGap, kAlignment);
  if (bytes > kCapacityBytes - live_bytes_ || begin + bytes + kGap > kRegionBytes) return nullptr;
  char* const data = base_ + begin;
  used_ = begin + bytes;
  live_bytes_ += bytes;
  allocations_[data] = {bytes, allocations_.size() + 1};
  const Access access(*this);
  std::memset(data, 0xff, bytes);
  shadow_.set(data, bytes, ByteState::unwritten);
  return data;
}

void* DeviceMemory::allocate_sparse(std::size_t bytes, ByteState state) {
  const std::size_t begin = round_up(used_ + kGap, kPageBytes);
  const std::size_t pages = round_up(bytes + kGap, kPageBytes);
  if (begin + pages > kRegionBytes) return nullptr;
  char* const data = base_ + begin;
  used_ = begin + pages;
  allocations_[data] = {bytes, allocations_.size() + 1, true, true};
  shadow_.set_sparse(data, bytes, state);
  return data;
}

std::size_t DeviceMemory::free(void* data) {
  const auto found = allocations_.find(static_cast<const char*>(data));
  if (found == allocations_.end() || !found->second.live) return 0;
  found->second.live = false;
  const std::size_t bytes = found->second.bytes;
  drop_pages(data, bytes);
  if (found->second.sparse) {
    shadow_.set_sparse(data, bytes, ByteState::freed);
  } else {
    live_bytes_ -= bytes;
    shadow_.set(data, bytes, ByteState::freed);
    shadow_.drop_histories(data, bytes);
  }
  return bytes;
}

std::string DeviceMemory::describe(const void* address) const {
  const char* const at = static_cast<const char*>(address);
  auto next = allocations_.upper_bound(at);
  const bool has_next = next != allocations_.end();
  if (next != allocations_.begin()) {
    const auto& [start, allocation] = *std::prev(next);
    const std::size_t offset = static_cast<std::size_t>(at - start);
    const bool nearer_to_next = has_next && offset > allocation.bytes &&
                                static_cast<std::size_t>(next->first - at) < offset - allocation.bytes;
    if (!nearer_to_next)
      return fmt::format("byte {} of {}allocation {} of cuda:{}, which has {} bytes", offset,
                         allocation.live ? "" : "the freed ", allocation.serial, ordinal_, allocation.bytes);
  }
  if (!has_next) return fmt::format("memory of cuda:{} that was never allocated", ordinal_);
  return fmt::format("{} bytes before allocation {} of cuda:{}", next->first - at, next->second.serial,
                     ordinal_);
}

std::string DeviceMemory::describe_live() const {
  std::string text;
  for (const auto& [start, allocation] : allocations_)
    if (allocation.live)
      text += fmt::format("  allocation {} of cuda:{}: {} bytes\n", allocation.serial, ordinal_,
                          allocation.bytes);
  return text;
}

DeviceMemory::Access::Access(DeviceMemory& memory) : memory_(memory) {
  if (memory.key_ >= 0) {
    previous_ = static_cast<unsigned>(pkey_get(memory.key_));
    pkey_set(memory.key_, 0);
  } else if (memory.accesses_++ == 0) {
    mprotect(memory.base_, kRegionBytes, PROT_READ | PROT_WRITE);
  }
}

DeviceMemory::Access::~Access() {
  if (memory_.key_ >= 0)
    pkey_set(memory_.key_, previous_);
  else if (--memory_.accesses_ == 0)
    mprotect(memory_.base_, kRegionBytes, PROT_NONE);
}

void* PinnedMemory::allocate(std::size_t bytes) {
  void* data = nullptr;
  if (posix_memalign(&data, kAlignment, bytes) != 0) return nullptr;
  std::memset(data, 0xff, bytes);
  ranges_[static_cast<const char*>(data)] = bytes;
  return data;
}

bool PinnedMemory::free(void* data) {
  if (ranges_.erase(static_cast<const char*>(data)) == 0) return false;
  std::free(data);
  return true;
}

bool PinnedMemory::contains(const void* data, std::size_t bytes) const {
  const char* const begin = static_cast<const char*>(data);
  auto next = ranges_.upper_bound(begin);
  if (next == ranges_.begin()) return false;
  const auto& [start, size] = *std::prev(next);
  return static_cast<std::size_t>(begin - start) + bytes <= size;
}

std::string PinnedMemory::describe_live() const {
  std::string text;
  for (const auto& [start, bytes] : ranges_)
    text += fmt::format("  page-locked host memory: {} bytes\n", bytes);
  return text;
}

}  // namespace virtual_gpu
