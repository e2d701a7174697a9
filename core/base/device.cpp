#include "core/base/device.h"

#include <charconv>

#include "core/base/error.h"
#if ANNULUS_HAS_CUDA
#include <cuda.h>

#include "core/base/cuda_check.h"
#endif

namespace annulus {

Device Device::parse(std::string_view text) {
  if (text == "cpu") return Device::cpu();
  constexpr std::string_view kPrefix = "cuda:";
  if (text.substr(0, kPrefix.size()) == kPrefix) {
    const std::string_view digits = text.substr(kPrefix.size());
    int ordinal = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), ordinal);
    if (error == std::errc() && end == digits.data() + digits.size() && ordinal >= 0)
      return Device::cuda(ordinal);
  }
  fail<ConfigError>("\"{}\" is not a device; write \"cpu\" or \"cuda:K\" with K = 0, 1, ...", text);
}

std::string Device::to_string() const { return is_cpu() ? "cpu" : fmt::format("cuda:{}", ordinal); }

#if ANNULUS_HAS_CUDA

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string cuda_unavailable_reason() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return fmt::format("no CUDA device: {}", cudaGetErrorString(status));
  return count == 0 ? "no CUDA device is visible" : "";
}

DeviceIdentity identify(Device device) {
  if (device.is_cpu()) return {};
  cudaDeviceProp properties{};
  ANNULUS_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.ordinal));
  std::string uuid = "GPU";
  for (std::size_t i = 0; i < sizeof(properties.uuid.bytes); ++i) {
    const bool starts_group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    uuid += fmt::format("{}{:02x}", starts_group ? "-" : "",
                        static_cast<unsigned char>(properties.uuid.bytes[i]));
  }
  return {properties.name, uuid};
}

namespace {

// Asked of the driver, which is looked up at run time: programs start on machines without one.
bool has_context(int ordinal) {
  static const auto get_state = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    ANNULUS_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 12000,
                                                        cudaEnableDefault, &found));
    require<DeviceError>(
        found == cudaDriverEntryPointSuccess,
        "the CUDA driver has no cuDevicePrimaryCtxGetState; install a driver for CUDA 12 or later");
    return reinterpret_cast<CUresult (*)(CUdevice, unsigned*, int*)>(function);
  }();
  unsigned flags = 0;
  int active = 0;
  return get_state(ordinal, &flags, &active) == CUDA_SUCCESS && active != 0;
}

}  // namespace

DeviceGuard::DeviceGuard(Device device) {
  if (!device.is_cuda()) return;
  int previous = 0;
  ANNULUS_CUDA_CHECK(cudaGetDevice(&previous));
  if (previous == device.ordinal) return;
  // A thread that has chosen no device finds 0 here, and to choose it would make a context on it.
  const bool was_in_use = has_context(previous);
  ANNULUS_CUDA_CHECK(cudaSetDevice(device.ordinal));
  if (was_in_use) previous_ = previous;
}

DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0) (void)cudaSetDevice(previous_);
}

#else

int cuda_device_count() { return 0; }

std::string cuda_unavailable_reason() { return "this build has no CUDA in it"; }

DeviceIdentity identify(Device device) {
  const DeviceGuard guard(device);
  return {};
}

DeviceGuard::DeviceGuard(Device device) {
  require<DeviceError>(!device.is_cuda(), "{} was asked for, but this build has no CUDA in it",
                       device.to_string());
}

DeviceGuard::~DeviceGuard() = default;

#endif

}  // namespace annulus
