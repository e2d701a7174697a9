// Sums over the rows of [rows, channels] matrices in a fixed order: bias gradients, batch normalisation.
#pragma once

#include "kernels/device/launch.h"

namespace annulus::kernels {

/// A block owns 32 neighbouring channels (threadIdx.x) and deals its rows out to `kRowLanes` (threadIdx.y).
inline constexpr unsigned kRowLanes = 16;
inline constexpr std::size_t kColumnSumsSharedBytes = kRowLanes * kWarpSize * sizeof(double);

/// Sum of the row lanes' `mine`, channel by channel; all lanes get it. Called by every thread of the block.
/// f64, because one lane may have added thousands of rows.
__device__ inline double add_row_lanes(double mine, double* shared) {
  shared[threadIdx.y * kWarpSize + threadIdx.x] = mine;
  __syncthreads();
  for (unsigned half = kRowLanes / 2; half != 0; half /= 2) {
    if (threadIdx.y < half)
      shared[threadIdx.y * kWarpSize + threadIdx.x] += shared[(threadIdx.y + half) * kWarpSize + threadIdx.x];
    __syncthreads();
  }
  const double total = shared[threadIdx.x];
  __syncthreads();
  return total;
}

/// Row chunks that column_sums cuts `rows` into.
std::size_t column_sums_chunks(std::size_t rows);

/// sums[channels] = column sums of x[rows, channels], T being float or BFloat16. `partials` holds
/// column_sums_chunks(rows) * channels f32.
template <class T>
void column_sums(StreamView stream, std::size_t rows, std::size_t channels, const T* x, float* partials,
                 float* sums);

}  // namespace annulus::kernels
