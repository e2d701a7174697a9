#include <algorithm>

#include "core/base/half.h"
#include "kernels/device/column_sums.h"

namespace annulus::kernels {
namespace {

// Blocks [channel group, chunk].
template <class T>
__global__ void chunk_sums_kernel(std::size_t rows, std::size_t rows_per_chunk, std::size_t channels,
                                  const T* x, float* partials) {
  const std::size_t channel = std::size_t{blockIdx.x} * kWarpSize + threadIdx.x;
  const std::size_t begin = blockIdx.y * rows_per_chunk;
  const std::size_t end = begin + rows_per_chunk < rows ? begin + rows_per_chunk : rows;
  double mine = 0;
  if (channel < channels)
    for (std::size_t row = begin + threadIdx.y; row < end; row += kRowLanes)
      mine += to_float(x[row * channels + channel]);
  const double total = add_row_lanes(mine, shared_memory<double>());
  if (channel < channels && threadIdx.y == 0)
    partials[blockIdx.y * channels + channel] = static_cast<float>(total);
}

__global__ void add_chunks_kernel(std::size_t chunks, std::size_t channels, const float* partials,
                                  float* sums) {
  const std::size_t channel = global_thread();
  if (channel >= channels) return;
  double total = 0;
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) total += partials[chunk * channels + channel];
  sums[channel] = static_cast<float>(total);
}

}  // namespace

std::size_t column_sums_chunks(std::size_t rows) {
  constexpr std::size_t kRowsPerChunk = 512;
  constexpr std::size_t kMostChunks = 128;
  return std::clamp<std::size_t>(blocks_for(rows, kRowsPerChunk), 1, kMostChunks);
}

template <class T>
void column_sums(StreamView stream, std::size_t rows, std::size_t channels, const T* x, float* partials,
                 float* sums) {
  const std::size_t chunks = column_sums_chunks(rows);
  launch(stream, {blocks_for(channels, kWarpSize), chunks}, dim3(kWarpSize, kRowLanes),
         kColumnSumsSharedBytes, chunk_sums_kernel<T>, rows, blocks_for(rows, chunks), channels, x, partials);
  constexpr unsigned kThreads = 128;
  launch(stream, {blocks_for(channels, kThreads)}, kThreads, 0, add_chunks_kernel, chunks, channels, partials,
         sums);
}

template void column_sums(StreamView, std::size_t, std::size_t, const float*, float*, float*);
template void column_sums(StreamView, std::size_t, std::size_t, const BFloat16*, float*, float*);

}  // namespace annulus::kernels
