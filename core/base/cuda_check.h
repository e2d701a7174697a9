// Turns CUDA runtime errors into DeviceError. Included by sources that are built with CUDA only.
#pragma once

#include <cuda_runtime.h>

#include "core/base/error.h"

namespace annulus {

inline void check_cuda(cudaError_t status, const char* call) {
  require<DeviceError>(status == cudaSuccess, "{} failed: {} ({})", call, cudaGetErrorString(status),
                       cudaGetErrorName(status));
}

}  // namespace annulus

/// Calls a CUDA runtime function and throws DeviceError with its text if it fails.
#define ANNULUS_CUDA_CHECK(call) ::annulus::check_cuda((call), #call)
