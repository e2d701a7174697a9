// The matrix product in f32, on the CUDA cores. gemm_plan.h says what is multiplied.
//
// A block computes a tile of kTileM x kTileN: it moves 16 columns of both operands to shared memory (the next
// ones are on their way to registers meanwhile), and each of its 16 x 16 threads keeps a small rectangle of C
// in registers.
#pragma once

#include "kernels/device/gemm_plan.h"

namespace annulus::kernels {

/// A tile in shared memory: [k][kPitch], the operand's own axis contiguous.
template <class Operand, unsigned kRows>
struct FloatTile {
  static constexpr unsigned kTileK = tile_k(Precision::f32);
  static constexpr unsigned kPitch = kRows + 4;
  static constexpr unsigned kElements = kTileK * kPitch;
  using Loader = TileLoader<Operand, kRows, kTileK>;

  static __device__ void put(float* tile, const Loader& loader) {
    loader.for_each_pack([&](unsigned row, unsigned k, const auto& bits) {
      Pack<Operand::kWidth> pack;
#pragma unroll
      for (unsigned j = 0; j < Operand::kWidth; ++j) pack.value[j] = __builtin_bit_cast(float, bits.value[j]);
      if constexpr (Operand::kAlongK) {
#pragma unroll
        for (unsigned j = 0; j < Operand::kWidth; ++j) tile[(k + j) * kPitch + row] = pack.value[j];
      } else {
        store(tile + k * kPitch + row, pack);
      }
    });
  }
};

// Left alone, the compiler spills registers of the narrow tile to fit three blocks on a multiprocessor.
template <unsigned kTileN, class A, class B, class Output>
__global__ void __launch_bounds__(kGemmThreads, kTileN == 32 ? 2 : 1)
    tiled_gemm_kernel(A a, B b, Output output, std::uint32_t k_total, std::uint32_t k_per_split,
                      std::size_t tiles_n) {
  constexpr unsigned kTileK = tile_k(Precision::f32);
  constexpr unsigned kThreadM = kTileM / 16;
  constexpr unsigned kThreadN = kTileN / 16;
  using TileA = FloatTile<A, kTileM>;
  using TileB = FloatTile<B, kTileN>;
  float* const tiles = shared_memory<float>();  // two pairs of tiles: one is read while the other is written

  const std::size_t first_m = blockIdx.x / tiles_n * kTileM;
  const std::size_t first_n = blockIdx.x % tiles_n * kTileN;
  const std::uint32_t k_begin = blockIdx.z * k_per_split;
  const std::uint32_t k_end = k_begin + k_per_split < k_total ? k_begin + k_per_split : k_total;
  const unsigned thread_m = threadIdx.x / 16 * kThreadM;
  const unsigned thread_n = threadIdx.x % 16 * kThreadN;

  typename TileA::Loader loader_a(a, first_m);
  typename TileB::Loader loader_b(b, first_n);
  float sums[kThreadM][kThreadN] = {};
  loader_a.fetch(a, k_begin, k_end);
  loader_b.fetch(b, k_begin, k_end);
  unsigned current = 0;
  for (std::uint32_t k = k_begin; k < k_end; k += kTileK) {
    float* const tile_a = tiles + current * (TileA::kElements + TileB::kElements);
    float* const tile_b = tile_a + TileA::kElements;
    TileA::put(tile_a, loader_a);
    TileB::put(tile_b, loader_b);
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
        const Pack<kPackM> pack = load<kPackM>(tile_a + j * TileA::kPitch + thread_m + m);
#pragma unroll
        for (unsigned i = 0; i < kPackM; ++i) column[m + i] = pack.value[i];
      }
#pragma unroll
      for (unsigned n = 0; n < kThreadN; n += kPackN) {
        const Pack<kPackN> pack = load<kPackN>(tile_b + j * TileB::kPitch + thread_n + n);
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

/// Shared memory of tiled_gemm_kernel.
template <unsigned kTileN, class A, class B>
constexpr std::size_t tiled_gemm_bytes() {
  return 2 * (FloatTile<A, kTileM>::kElements + FloatTile<B, kTileN>::kElements) * sizeof(float);
}

}  // namespace annulus::kernels
