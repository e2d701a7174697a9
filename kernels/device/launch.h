// How every kernel is launched, and how it reaches its dynamic shared memory. For .cu files only.
#pragma once

#include <cstddef>
#include <limits>

#include "core/base/cuda_check.h"
#include "core/base/stream.h"

namespace annulus::kernels {

/// Threads of a warp on every CUDA device.
inline constexpr unsigned kWarpSize = 32;

/// Blocks that cover `elements`, `per_block` at a time.
constexpr std::size_t blocks_for(std::size_t elements, std::size_t per_block) {
  return (elements + per_block - 1) / per_block;
}

/// Blocks for a grid-stride loop: enough to fill any device, few enough to be scheduled once.
constexpr std::size_t grid_stride_blocks(std::size_t elements, std::size_t per_block) {
  constexpr std::size_t kMostBlocks = 2048;
  const std::size_t blocks = blocks_for(elements, per_block);
  return blocks < kMostBlocks ? blocks : kMostBlocks;
}

struct Grid {
  std::size_t x = 1, y = 1, z = 1;  ///< blocks; at most 2^31 - 1, 65535 and 65535
};

/// Launches `kernel` on `stream` and its device. An empty grid launches nothing. Throws DeviceError.
template <class... Parameters, class... Arguments>
void launch(StreamView stream, Grid grid, dim3 threads, std::size_t shared_bytes,
            void (*kernel)(Parameters...), Arguments... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  require<ShapeError>(grid.x <= std::numeric_limits<int>::max() && grid.y <= 65535 && grid.z <= 65535,
                      "a grid of {} x {} x {} blocks exceeds CUDA's limits; use a smaller batch", grid.x,
                      grid.y, grid.z);
  const DeviceGuard guard(stream.device());
  cudaLaunchConfig_t config = {};
  config.gridDim =
      dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z));
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.handle());
  ANNULUS_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

/// This block's dynamic shared memory, aligned to 16 bytes.
template <class T>
__device__ T* shared_memory() {
#if ANNULUS_VIRTUAL_GPU
  return static_cast<T*>(virtual_gpu::shared_memory());
#else
  extern __shared__ float4 annulus_shared_memory[];
  return reinterpret_cast<T*>(annulus_shared_memory);
#endif
}

/// Index of this thread among all threads of a one-dimensional grid.
__device__ inline std::size_t global_thread() { return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; }

/// Threads of a one-dimensional grid.
__device__ inline std::size_t global_threads() { return std::size_t{gridDim.x} * blockDim.x; }

}  // namespace annulus::kernels
