// The memory of one device: a region of address space that is closed to all code but the device's own; and
// the page-locked host memory that devices copy from.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "shadow.h"

namespace virtual_gpu {

class DeviceMemory {
 public:
  explicit DeviceMemory(int ordinal);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// Memory filled with 0xff bytes (NaN as f32), surrounded by bytes that nothing may touch, at an address
  /// that was never used before. Null if the device is full.
  void* allocate(std::size_t bytes);

  /// Memory that takes none of the device's and the host's until it is touched. It reads as zeros, and counts
  /// as written or not.
  void* allocate_sparse(std::size_t bytes, ByteState state);

  /// Size of the freed allocation; 0 if `data` is not the start of a live one.
  std::size_t free(void* data);

  bool contains(const void* address) const { return shadow_.contains(address); }
  Shadow& shadow() { return shadow_; }
  int ordinal() const { return ordinal_; }

  /// "byte 400 of an allocation of 400 bytes on cuda:1 (the 3rd)", for reports.
  std::string describe(const void* address) const;

  /// The live allocations, one per line.
  std::string describe_live() const;

  /// While one of these exists, this host thread may touch the device's memory. Where the processor has no
  /// protection keys, every thread may. The machine's lock is held.
  class Access {
   public:
    explicit Access(DeviceMemory& memory);
    ~Access();
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

   private:
    DeviceMemory& memory_;
    unsigned previous_ = 0;
  };

 private:
  struct Allocation {
    std::size_t bytes, serial;
    bool live = true;
    bool sparse = false;
  };

  int ordinal_;
  char* base_;
  int key_;  // -1: the processor has no protection keys, or too few
  int accesses_ = 0;
  Shadow shadow_;
  std::size_t used_ = 0;  // bytes of the region ever handed out, with their surroundings
  std::size_t live_bytes_ = 0;
  std::map<const char*, Allocation> allocations_;  // by start; freed ones stay, to be described
};

/// Page-locked host memory.
class PinnedMemory {
 public:
  void* allocate(std::size_t bytes);
  bool free(void* data);
  bool contains(const void* data, std::size_t bytes) const;
  std::string describe_live() const;

 private:
  std::map<const char*, std::size_t> ranges_;
};

}  // namespace virtual_gpu
