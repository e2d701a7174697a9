// Memory: a Buffer owns bytes on one device.
#pragma once

#include <cstddef>
#include <functional>

#include "core/base/device.h"
#include "core/base/stream.h"

namespace annulus {

/// Owns bytes on one device, aligned to 256 bytes. Move-only. Freed on its own device; freeing never
/// throws. Contents start undefined.
class Buffer {
 public:
  Buffer() = default;

  /// Device memory of the device, or ordinary memory of the CPU. Zero bytes are allowed (data() is
  /// then null). Throws DeviceError that names the device and the size if there is not enough.
  Buffer(Device device, std::size_t bytes);

  /// Takes over memory that somebody else made (a shared-memory segment, say); `release` runs once.
  Buffer(Device device, void* data, std::size_t bytes, std::function<void()> release);

  /// Page-locked host memory that `device` can copy from and to asynchronously; ordinary memory if
  /// `device` is the CPU. device() is cpu.
  static Buffer pinned(Device device, std::size_t bytes);

  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  Device device_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::function<void()> release_;
};

/// Copies bytes between any two of host and `stream`'s device, in the order of `stream`. Asynchronous
/// for the host when the host side is pinned; otherwise the host bytes may be reused on return.
void copy_bytes(StreamView stream, void* destination, const void* source, std::size_t bytes);

/// Sets bytes to zero in the order of `stream`.
void zero_bytes(StreamView stream, void* destination, std::size_t bytes);

}  // namespace annulus
