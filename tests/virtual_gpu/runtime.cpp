// The functions of include/cuda_runtime.h for devices, memory, copies and launches.
#include "runtime.h"

#include <cuda.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "block.h"
#include "report.h"

namespace virtual_gpu {

VirtualDevice& device_of(int ordinal) { return *machine().devices[static_cast<std::size_t>(ordinal)]; }

VirtualDevice* device_with(const void* address) {
  for (const auto& device : machine().devices)
    if (device->memory.contains(address)) return device.get();
  return nullptr;
}

VirtualDevice& current() {
  VirtualDevice& device = device_of(current_device());
  device.ledger.has_context = true;
  return device;
}

cudaError_t status_of(const VirtualDevice& device) {
  return device.failed ? cudaErrorLaunchFailure : cudaSuccess;
}

void require_current(int device, const char* call, const char* what) {
  if (device != current_device())
    report(nullptr, "{}: the {} is of cuda:{}, but cuda:{} is current", call, what, device, current_device());
}

void check_allocated(VirtualDevice& device, const void* data, std::size_t bytes, const char* call) {
  if (const void* bad = device.memory.shadow().first_forbidden(data, bytes))
    report(nullptr, "{} of {} bytes touches {}", call, bytes, device.memory.describe(bad));
}

void wait_for(Stream& stream, const char* call) {
  machine().run_until([&] { return stream.queue.empty(); }, call);
}

}  // namespace virtual_gpu

using namespace virtual_gpu;

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
  }
  return "unknown";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
  }
  return "unknown error";
}

cudaError_t cudaGetDeviceCount(int* count) {
  const Lock lock(machine().mutex);
  *count = static_cast<int>(machine().devices.size());
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  const Lock lock(machine().mutex);
  if (device < 0 || device >= static_cast<int>(machine().devices.size())) return cudaErrorInvalidDevice;
  current_device() = device;
  current();  // makes its context, as CUDA 12 and later do
  return cudaSuccess;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  const Lock lock(machine().mutex);
  if (device < 0 || device >= static_cast<int>(machine().devices.size())) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = device_of(device).ledger.has_context;
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long, cudaDriverEntryPointQueryResult* result) {
  const bool known = std::string_view(symbol) == "cuDevicePrimaryCtxGetState";
  *function = known ? reinterpret_cast<void*>(cuDevicePrimaryCtxGetState) : nullptr;
  *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

// Creates no context.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  const Lock lock(machine().mutex);
  if (device < 0 || device >= static_cast<int>(machine().devices.size())) return cudaErrorInvalidDevice;
  *properties = {};
  std::strcpy(properties->name, "virtual GPU");
  properties->uuid.bytes[15] = static_cast<char>(device);
  return cudaSuccess;
}

namespace {

bool fails_to_allocate() { return machine().failing_allocation != 0 && --machine().failing_allocation == 0; }

}  // namespace

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  const Lock lock(machine().mutex);
  require_no_capture("cudaMalloc");
  VirtualDevice& device = current();
  if (const cudaError_t status = status_of(device); status != cudaSuccess) return status;
  const bool fails = fails_to_allocate();
  const auto& sparse = machine().sparse_allocations;
  if (fails)
    *data = nullptr;
  else if (sparse)
    *data = device.memory.allocate_sparse(
        bytes, *sparse == SparseContents::zeros ? ByteState::written : ByteState::unwritten);
  else
    *data = device.memory.allocate(bytes);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  DeviceLedger& ledger = device.ledger;
  ++ledger.allocations;
  ++ledger.total_allocations;
  ledger.allocated_bytes += bytes;
  ledger.peak_bytes = std::max(ledger.peak_bytes, ledger.allocated_bytes);
  return cudaSuccess;
}

// Waits for the device, as cudaFree does.
cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  const Lock lock(machine().mutex);
  require_no_capture("cudaFree");
  VirtualDevice* const device = device_with(data);
  if (device == nullptr) report(nullptr, "cudaFree of {}, which is not device memory", data);
  machine().drain(device->memory.ordinal(), "cudaFree");
  const std::size_t bytes = device->memory.free(data);
  if (bytes == 0)
    report(nullptr, "cudaFree of {}, where no live allocation starts", device->memory.describe(data));
  --device->ledger.allocations;
  device->ledger.allocated_bytes -= bytes;
  return status_of(*device);
}

cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  const Lock lock(machine().mutex);
  require_no_capture("cudaHostAlloc");
  if (const cudaError_t status = status_of(current()); status != cudaSuccess) return status;
  *data = fails_to_allocate() ? nullptr : machine().pinned.allocate(bytes);
  return *data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
  if (data == nullptr) return cudaSuccess;
  const Lock lock(machine().mutex);
  require_no_capture("cudaFreeHost");
  if (!machine().pinned.free(data))
    report(nullptr, "cudaFreeHost of {}, which is not live page-locked memory", data);
  return status_of(device_of(current_device()));
}

namespace {

// Which memory a copy touches is known when it is queued; whether it is still there, when it runs.
struct CopyEnd {
  VirtualDevice* device;  // null: host memory
  bool pinned;
};

CopyEnd copy_end(const void* data, std::size_t bytes) {
  return {device_with(data), machine().pinned.contains(data, bytes)};
}

void check_copy_end(const CopyEnd& end, const void* data, std::size_t bytes) {
  if (end.device != nullptr) {
    check_allocated(*end.device, data, bytes, "cudaMemcpyAsync");
    end.device->ledger.copied_bytes += bytes;
  } else if (end.pinned && !machine().pinned.contains(data, bytes)) {
    report(nullptr, "cudaMemcpyAsync of {} bytes runs after its page-locked host memory was freed", bytes);
  }
}

void copy_now(const CopyEnd& to, void* destination, const CopyEnd& from, const void* source,
              std::size_t bytes) {
  check_copy_end(to, destination, bytes);
  check_copy_end(from, source, bytes);
  const std::unique_ptr<DeviceMemory::Access> open_to(to.device ? new DeviceMemory::Access(to.device->memory)
                                                                : nullptr);
  const std::unique_ptr<DeviceMemory::Access> open_from(
      from.device && from.device != to.device ? new DeviceMemory::Access(from.device->memory) : nullptr);
  std::memmove(destination, source, bytes);
  if (to.device == nullptr) return;
  if (from.device != nullptr)
    to.device->memory.shadow().copy(destination, source, bytes, from.device->memory.shadow());
  else
    to.device->memory.shadow().set(destination, bytes, ByteState::written);
}

}  // namespace

cudaError_t cudaMemcpyAsync(void* destination, const void* source, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t handle) {
  const Lock lock(machine().mutex);
  Stream& stream = machine().stream(handle, "cudaMemcpyAsync");
  VirtualDevice& device = device_of(stream.device);
  device.ledger.has_context = true;
  if (const cudaError_t status = status_of(device); status != cudaSuccess) return status;
  const CopyEnd to = copy_end(destination, bytes);
  const CopyEnd from = copy_end(source, bytes);
  if (stream.capture != nullptr &&
      ((to.device == nullptr && !to.pinned) || (from.device == nullptr && !from.pinned)))
    report(nullptr, "cudaMemcpyAsync: a copy of pageable memory cannot be captured");
  if (from.device == nullptr && !from.pinned) {
    // Pageable memory is staged: the caller may reuse it on return.
    const char* const begin = static_cast<const char*>(source);
    machine().enqueue(stream, {[=, staged = std::vector<char>(begin, begin + bytes)] {
                                 copy_now(to, destination, from, staged.data(), bytes);
                               },
                               {}});
  } else {
    machine().enqueue(stream, {[=] { copy_now(to, destination, from, source, bytes); }, {}});
  }
  // A copy to pageable memory returns when it is done.
  if (to.device == nullptr && !to.pinned) wait_for(stream, "cudaMemcpyAsync to pageable memory");
  return status_of(device);
}

cudaError_t cudaMemsetAsync(void* destination, int value, std::size_t bytes, cudaStream_t handle) {
  const Lock lock(machine().mutex);
  Stream& stream = machine().stream(handle, "cudaMemsetAsync");
  require_current(stream.device, "cudaMemsetAsync", "stream");
  VirtualDevice* const device = device_with(destination);
  if (device == nullptr) report(nullptr, "cudaMemsetAsync of {}, which is not device memory", destination);
  require_current(device->memory.ordinal(), "cudaMemsetAsync", "memory");
  if (const cudaError_t status = status_of(*device); status != cudaSuccess) return status;
  machine().enqueue(stream, {[=] {
                               check_allocated(*device, destination, bytes, "cudaMemsetAsync");
                               const DeviceMemory::Access access(device->memory);
                               std::memset(destination, value, bytes);
                               device->memory.shadow().set(destination, bytes, ByteState::written);
                             },
                             {}});
  return cudaSuccess;
}

namespace {

// From the table of technical specifications in the CUDA C++ Programming Guide.
void check_limits(const cudaLaunchConfig_t& config, const std::string& name) {
  const auto limit = [&](const char* what, std::size_t value, std::size_t least, std::size_t most) {
    if (value < least || value > most)
      report(nullptr, "launch limits exceeded: {} with {} {}; {} to {} are possible", name, value, what,
             least, most);
  };
  const dim3& grid = config.gridDim;
  const dim3& block = config.blockDim;
  limit("blocks in x", grid.x, 1, 2147483647);
  limit("blocks in y", grid.y, 1, 65535);
  limit("blocks in z", grid.z, 1, 65535);
  limit("threads in x", block.x, 1, 1024);
  limit("threads in y", block.y, 1, 1024);
  limit("threads in z", block.z, 1, 64);
  limit("threads in a block", std::size_t{block.x} * block.y * block.z, 1, 1024);
  limit("bytes of dynamic shared memory", config.dynamicSmemBytes, 0, 48 * 1024);
}

// The blocks that a test chose, checked; empty: all.
std::vector<std::size_t> chosen_blocks(const dim3& grid, const char* name) {
  if (!machine().only_blocks) return {};
  const std::size_t blocks = std::size_t{grid.x} * grid.y * grid.z;
  const std::vector<std::size_t> chosen = machine().only_blocks(blocks);
  const auto largest = std::max_element(chosen.begin(), chosen.end());
  if (chosen.empty() || *largest >= blocks)
    report(nullptr, "a test must choose blocks 0 to {} of {}", blocks - 1, name);
  return chosen;
}

}  // namespace

cudaError_t virtual_gpu::launch(const cudaLaunchConfig_t& config, void (*call)(const void*),
                                const void* arguments, std::size_t argument_bytes,
                                void (*release)(const void*), const char* signature) {
  const Lock lock(machine().mutex);
  Stream& stream = machine().stream(config.stream, "cudaLaunchKernelEx");
  require_current(stream.device, "cudaLaunchKernelEx", "stream");
  VirtualDevice& device = current();
  check_limits(config, signature);
  const std::shared_ptr<const void> owned(arguments, release);
  if (const cudaError_t status = status_of(device); status != cudaSuccess) return status;
  const auto queued = std::make_shared<Launch>(
      Launch{config.gridDim, config.blockDim, config.dynamicSmemBytes, call, arguments, argument_bytes,
             signature, 0, chosen_blocks(config.gridDim, signature)});
  machine().enqueue(stream, {[queued, owned, &device] {
                               if (machine().meets_fault(device)) return;
                               ++device.ledger.launches;
                               queued->serial = ++machine().launch_serial;
                               run_launch(*queued, device.memory, machine().random());
                             },
                             {}});
  return cudaSuccess;
}
