// Which device a tensor lives on, and what devices this process can use.
#pragma once

#include <string>
#include <string_view>

namespace annulus {

enum class DeviceType { cpu, cuda };

/// A device by type and ordinal. "cpu" has ordinal 0. CUDA ordinals are logical: they count the
/// devices that CUDA_VISIBLE_DEVICES leaves visible to this process.
struct Device {
  DeviceType type = DeviceType::cpu;
  int ordinal = 0;

  static Device cpu() { return {}; }
  static Device cuda(int ordinal) { return {DeviceType::cuda, ordinal}; }

  /// Reads "cpu" or "cuda:K". A bare "cuda" is refused here, because only a rank can say which
  /// device that is. Throws ConfigError.
  static Device parse(std::string_view text);

  bool is_cpu() const { return type == DeviceType::cpu; }
  bool is_cuda() const { return type == DeviceType::cuda; }

  /// "cpu" or "cuda:K".
  std::string to_string() const;

  friend bool operator==(const Device&, const Device&) = default;
};

/// CUDA devices this process may use: 0 without a driver, without a device, or in a build without
/// CUDA. Creates no context on any device.
int cuda_device_count();

/// Why cuda_device_count() is 0, in one line for the user; empty if it is not.
std::string cuda_unavailable_reason();

/// What a device is called; both are empty for the CPU.
struct DeviceIdentity {
  std::string name;  ///< "NVIDIA H200"
  std::string uuid;  ///< "GPU-" and 32 hexadecimal digits in the usual five groups
};

/// Creates no context. Throws DeviceError if there is no such device.
DeviceIdentity identify(Device device);

/// Makes `device` current for the calling thread and restores the earlier one, unless nothing in this process
/// has used that one yet: to restore it would make a context on it. No effect for the CPU.
/// Every thread that touches a CUDA device holds one of these first.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = -1;
};

}  // namespace annulus
