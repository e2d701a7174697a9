#include "core/base/buffer.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#if ANNULUS_HAS_CUDA
#include "core/base/cuda_check.h"
#endif

namespace annulus {
namespace {

// cudaMalloc aligns to 256 bytes; the CPU does the same, so that slices are aligned everywhere.
constexpr std::size_t kAlignment = 256;

void* allocate_host(std::size_t bytes) {
  void* data = nullptr;
  const int status = posix_memalign(&data, kAlignment, bytes);
  require<DeviceError>(status == 0, "cpu: cannot allocate {} bytes; use a smaller batch or model", bytes);
  return data;
}

}  // namespace

Buffer::Buffer(Device device, std::size_t bytes) : device_(device), bytes_(bytes) {
  if (bytes == 0) return;
  if (device.is_cpu()) {
    data_ = allocate_host(bytes);
    release_ = [data = data_] { std::free(data); };
    return;
  }
  const DeviceGuard guard(device);
#if ANNULUS_HAS_CUDA
  const cudaError_t status = cudaMalloc(&data_, bytes);
  require<DeviceError>(status == cudaSuccess,
                       "{}: cannot allocate {} bytes: {}; use a smaller batch or model, or free the device",
                       device.to_string(), bytes, cudaGetErrorString(status));
  release_ = [data = data_] { (void)cudaFree(data); };
#endif
}

Buffer::Buffer(Device device, void* data, std::size_t bytes, std::function<void()> release)
    : device_(device), data_(data), bytes_(bytes), release_(std::move(release)) {}

Buffer Buffer::pinned(Device device, std::size_t bytes) {
  if (device.is_cpu() || bytes == 0) return Buffer(Device::cpu(), bytes);
  const DeviceGuard guard(device);
  void* data = nullptr;
  std::function<void()> release;
#if ANNULUS_HAS_CUDA
  const cudaError_t status = cudaHostAlloc(&data, bytes, cudaHostAllocDefault);
  require<DeviceError>(status == cudaSuccess, "{}: cannot allocate {} bytes of page-locked host memory: {}",
                       device.to_string(), bytes, cudaGetErrorString(status));
  release = [data] { (void)cudaFreeHost(data); };
#endif
  return Buffer(Device::cpu(), data, bytes, std::move(release));
}

Buffer::~Buffer() {
  if (release_) release_();
}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(other.device_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      release_(std::exchange(other.release_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(release_, other.release_);
  return *this;
}

void copy_bytes(StreamView stream, void* destination, const void* source, std::size_t bytes) {
  if (bytes == 0) return;
  if (stream.device().is_cpu()) {
    std::memcpy(destination, source, bytes);
    return;
  }
  const DeviceGuard guard(stream.device());
#if ANNULUS_HAS_CUDA
  ANNULUS_CUDA_CHECK(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault,
                                     static_cast<cudaStream_t>(stream.handle())));
#endif
}

void zero_bytes(StreamView stream, void* destination, std::size_t bytes) {
  if (bytes == 0) return;
  if (stream.device().is_cpu()) {
    std::memset(destination, 0, bytes);
    return;
  }
  const DeviceGuard guard(stream.device());
#if ANNULUS_HAS_CUDA
  ANNULUS_CUDA_CHECK(cudaMemsetAsync(destination, 0, bytes, static_cast<cudaStream_t>(stream.handle())));
#endif
}

}  // namespace annulus
