// What the functions of the toolkit's headers share.
#pragma once

#include <cstddef>
#include <mutex>

#include "machine.h"

namespace virtual_gpu {

using Lock = std::lock_guard<std::recursive_mutex>;

VirtualDevice& device_of(int ordinal);

/// The device whose memory this address is in, or null.
VirtualDevice* device_with(const void* address);

/// The current device, which now has a context.
VirtualDevice& current();

/// What every call for a device returns once it has failed.
cudaError_t status_of(const VirtualDevice& device);

/// Reports a `call` for the `what` of a device that is not current: the runtime refuses these, or worse,
/// works on the wrong device.
void require_current(int device, const char* call, const char* what);

/// Reports bytes that are not allocated.
void check_allocated(VirtualDevice& device, const void* data, std::size_t bytes, const char* call);

void wait_for(Stream& stream, const char* call);

}  // namespace virtual_gpu
