// One tiled matrix product for every linear and convolution kernel: C[m][n] = sum over k of A(m, k) B(n, k).
//
// What A, B and C are is up to the caller. An operand is a struct with
//   static constexpr bool kAlongK   its packs run along k (true) or along its own axis, m or n (false)
//   static constexpr int kWidth     elements of a pack
//   Line line(i)                    everything about row i of A or B that does not depend on k
//   Pack<kWidth> load(line, k)      elements (i, k) ... of the pack; zeros beyond the operand's extents
// and an output is a struct with
//   void write(m, n, pack)          takes C[m][n ...]; ignores what is beyond its extents
//
// A block computes a tile of kTileM x kTileN: it moves kTileK columns of both operands to shared memory (the
// next ones are on their way to registers meanwhile), and each of its 16 x 16 threads keeps a small rectangle
// of C in registers. With few tiles and a long k, the blocks of grid.z share it and a second kernel adds
// their parts in order.
#pragma once

#include <algorithm>

#include "kernels/device/pack.h"

namespace annulus::kernels {

inline constexpr unsigned kGemmThreads = 256;
inline constexpr unsigned kTileK = 16;

struct GemmShape {
  std::size_t m = 0, n = 0, k = 0;
};

/// How a product is cut; depends on the shape alone, so that its bits do too.
struct GemmPlan {
  GemmShape shape;
  bool narrow = false;  ///< tiles for at most 32 columns
  std::size_t splits = 1;
  std::size_t k_per_split = 0;

  explicit GemmPlan(GemmShape gemm_shape) : shape(gemm_shape), narrow(gemm_shape.n <= 32) {
    constexpr std::size_t kWantedBlocks = 256;  // about two for each multiprocessor of a large device
    constexpr std::size_t kLeastK = 128;        // below that, a part is not worth its second pass
    const std::size_t tiles = blocks_for(shape.m, tile_m()) * blocks_for(shape.n, tile_n());
    const std::size_t most = std::max<std::size_t>(shape.k / kLeastK, 1);
    splits = std::clamp<std::size_t>(kWantedBlocks / std::max<std::size_t>(tiles, 1), 1, most);
    k_per_split = blocks_for(blocks_for(shape.k, splits), kTileK) * kTileK;
    splits = std::max<std::size_t>(blocks_for(shape.k, std::max<std::size_t>(k_per_split, 1)), 1);
  }

  std::size_t tile_m() const { return 128; }
  std::size_t tile_n() const { return narrow ? 32 : 64; }

  /// f32 elements of workspace for the parts.
  std::size_t workspace_elements() const { return splits == 1 ? 0 : splits * shape.m * shape.n; }
};

/// One part of a split product: part `blockIdx.z` of [splits, m, n].
struct PartialOutput {
  float* parts;
  GemmShape shape;

  template <int Width>
  __device__ void write(std::size_t m, std::size_t n, const Pack<Width>& pack) const {
    float* const row = parts + (blockIdx.z * shape.m + m) * shape.n;
    if (m >= shape.m) return;
    for (int i = 0; i < Width; ++i)
      if (n + i < shape.n) row[n + i] = pack.value[i];
  }
};

/// The packs of one operand's tile that one thread moves from global to shared memory.
template <class Operand, unsigned kRows>
struct TileLoader {
  static constexpr unsigned kWidth = Operand::kWidth;
  static constexpr unsigned kTilePacks = kRows * kTileK / kWidth;
  static constexpr unsigned kPacks = (kTilePacks + kGemmThreads - 1) / kGemmThreads;
  static constexpr unsigned kPitch = kRows + 4;  // shared tiles are [kTileK][kPitch]

  // A small tile has fewer packs than the block has threads.
  static __device__ bool has(unsigned pack) {
    return kTilePacks % kGemmThreads == 0 || threadIdx.x + pack * kGemmThreads < kTilePacks;
  }

  static __device__ unsigned row_of(unsigned pack) {
    const unsigned p = threadIdx.x + pack * kGemmThreads;
    return Operand::kAlongK ? p / (kTileK / kWidth) : p % (kRows / kWidth) * kWidth;
  }
  static __device__ unsigned k_of(unsigned pack) {
    const unsigned p = threadIdx.x + pack * kGemmThreads;
    return Operand::kAlongK ? p % (kTileK / kWidth) * kWidth : p / (kRows / kWidth);
  }

  __device__ TileLoader(const Operand& operand, std::size_t first_row) {
#pragma unroll
    for (unsigned i = 0; i < kPacks; ++i) lines[i] = operand.line(first_row + row_of(i));
  }

  __device__ void fetch(const Operand& operand, std::size_t k, std::size_t k_end) {
#pragma unroll
    for (unsigned i = 0; i < kPacks; ++i)
      packs[i] = has(i) && k + k_of(i) < k_end ? operand.load(lines[i], k + k_of(i)) : Pack<kWidth>{};
  }

  __device__ void put(float* tile) const {
#pragma unroll
    for (unsigned i = 0; i < kPacks; ++i) {
      if (!has(i)) continue;
      if constexpr (Operand::kAlongK) {
#pragma unroll
        for (unsigned j = 0; j < kWidth; ++j) tile[(k_of(i) + j) * kPitch + row_of(i)] = packs[i].value[j];
      } else {
        store(tile + k_of(i) * kPitch + row_of(i), packs[i]);
      }
    }
  }

  typename Operand::Line lines[kPacks];
  Pack<kWidth> packs[kPacks];
};

template <unsigned kTileM, unsigned kTileN, class A, class B, class Output>
__global__ void __launch_bounds__(kGemmThreads)
    gemm_kernel(A a, B b, Output output, std::size_t k_total, std::size_t k_per_split, std::size_t tiles_n) {
  constexpr unsigned kThreadM = kTileM / 16;
  constexpr unsigned kThreadN = kTileN / 16;
  using LoaderA = TileLoader<A, kTileM>;
  using LoaderB = TileLoader<B, kTileN>;
  constexpr unsigned kTileAElements = kTileK * LoaderA::kPitch;
  constexpr unsigned kTileElements = kTileAElements + kTileK * LoaderB::kPitch;
  float* const tiles = shared_memory<float>();  // two pairs of tiles: one is read while the other is written

  const std::size_t first_m = blockIdx.x / tiles_n * kTileM;
  const std::size_t first_n = blockIdx.x % tiles_n * kTileN;
  const std::size_t k_begin = blockIdx.z * k_per_split;
  const std::size_t k_end = k_begin + k_per_split < k_total ? k_begin + k_per_split : k_total;
  const unsigned thread_m = threadIdx.x / 16 * kThreadM;
  const unsigned thread_n = threadIdx.x % 16 * kThreadN;

  LoaderA loader_a(a, first_m);
  LoaderB loader_b(b, first_n);
  float sums[kThreadM][kThreadN] = {};
  loader_a.fetch(a, k_begin, k_end);
  loader_b.fetch(b, k_begin, k_end);
  unsigned current = 0;
  for (std::size_t k = k_begin; k < k_end; k += kTileK) {
    float* const tile_a = tiles + current * kTileElements;
    float* const tile_b = tile_a + kTileAElements;
    loader_a.put(tile_a);
    loader_b.put(tile_b);
    __syncthreads();
    loader_a.fetch(a, k + kTileK, k_end);
    loader_b.fetch(b, k + kTileK, k_end);
#pragma unroll
    for (unsigned j = 0; j < kTileK; ++j) {
      float column[kThreadM];
      float row[kThreadN];
      constexpr unsigned kPackM = kThreadM < 4 ? kThreadM : 4;
      constexpr unsigned kPackN = kThreadN < 4 ? kThreadN : 4;
#pragma unroll
      for (unsigned m = 0; m < kThreadM; m += kPackM) {
        const Pack<kPackM> pack = load<kPackM>(tile_a + j * LoaderA::kPitch + thread_m + m);
#pragma unroll
        for (unsigned i = 0; i < kPackM; ++i) column[m + i] = pack.value[i];
      }
#pragma unroll
      for (unsigned n = 0; n < kThreadN; n += kPackN) {
        const Pack<kPackN> pack = load<kPackN>(tile_b + j * LoaderB::kPitch + thread_n + n);
#pragma unroll
        for (unsigned i = 0; i < kPackN; ++i) row[n + i] = pack.value[i];
      }
#pragma unroll
      for (unsigned m = 0; m < kThreadM; ++m)
#pragma unroll
        for (unsigned n = 0; n < kThreadN; ++n) sums[m][n] += column[m] * row[n];
    }
    current ^= 1;
  }
#pragma unroll
  for (unsigned m = 0; m < kThreadM; ++m) {
    Pack<kThreadN> pack;
#pragma unroll
    for (unsigned n = 0; n < kThreadN; ++n) pack.value[n] = sums[m][n];
    output.write(first_m + thread_m + m, first_n + thread_n, pack);
  }
}

/// Adds the parts of a split product in order and hands the sums to the output.
template <class Output>
__global__ void add_parts_kernel(GemmShape shape, std::size_t splits, const float* parts, Output output) {
  const std::size_t elements = shape.m * shape.n;
  for (std::size_t i = global_thread(); i < elements; i += global_threads()) {
    float total = parts[i];
    for (std::size_t split = 1; split < splits; ++split) total += parts[split * elements + i];
    output.write(i / shape.n, i % shape.n, Pack<1>{{total}});
  }
}

/// Runs the planned product. `workspace` holds plan.workspace_elements() f32.
template <class A, class B, class Output>
void gemm(StreamView stream, const GemmPlan& plan, const A& a, const B& b, const Output& output,
          float* workspace) {
  const std::size_t tiles_n = blocks_for(plan.shape.n, plan.tile_n());
  const Grid grid{blocks_for(plan.shape.m, plan.tile_m()) * tiles_n, 1, plan.splits};
  const std::size_t pitches = plan.tile_m() + plan.tile_n() + 8;
  const std::size_t shared_bytes = 2 * kTileK * pitches * sizeof(float);
  if (plan.splits == 1) {
    launch(stream, grid, kGemmThreads, shared_bytes,
           plan.narrow ? gemm_kernel<128, 32, A, B, Output> : gemm_kernel<128, 64, A, B, Output>, a, b,
           output, plan.shape.k, plan.k_per_split, tiles_n);
    return;
  }
  launch(stream, grid, kGemmThreads, shared_bytes,
         plan.narrow ? gemm_kernel<128, 32, A, B, PartialOutput> : gemm_kernel<128, 64, A, B, PartialOutput>,
         a, b, PartialOutput{workspace, plan.shape}, plan.shape.k, plan.k_per_split, tiles_n);
  launch(stream, {grid_stride_blocks(plan.shape.m * plan.shape.n, kGemmThreads)}, kGemmThreads, 0,
         add_parts_kernel<Output>, plan.shape, plan.splits, static_cast<const float*>(workspace), output);
}

}  // namespace annulus::kernels
