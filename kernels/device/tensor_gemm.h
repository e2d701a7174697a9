// The matrix product on the tensor cores, in bf16 or tf32 with f32 sums. gemm_plan.h says what is multiplied,
// mma.h what the tensor cores do.
//
// A block of 8 warps computes a tile of 128 x kTileN. It moves 64 bytes of k of both operands to shared
// memory (the next ones are on their way to registers meanwhile). Each warp owns a rectangle of the tile, 32
// columns wide, and for every step of k, the 32 bytes that one mma takes, loads the fragments of its rows and
// columns and multiplies each with each:
//
//                    32 columns
//                 b[0]  b[1]  b[2]  b[3]       8 columns each
//          a[0]    C     C     C     C         16 rows each
//          a[1]    C     C     C     C
//
// At the end the sums go through shared memory once more, since the lane that should write a row is not the
// one that holds it.
#pragma once

#include "kernels/device/gemm_plan.h"
#include "kernels/device/mma.h"

namespace annulus::kernels {

/// A tile of kRows x 64 bytes of k in shared memory. It lies as the operand does: a line is one row along k,
/// or one k along the rows. A line consists of units of 16 bytes, whose order is mixed differently in every
/// line, so that the lanes that read a fragment, or write neighbouring packs, meet in no bank.
template <class Operand, unsigned kRows>
struct TensorTile {
  using Element = typename Operand::Element;
  static constexpr unsigned kUnit = 16 / sizeof(Element);
  static constexpr unsigned kTileK = 4 * kUnit;
  static constexpr unsigned kStepK = 2 * kUnit;  // of one mma
  static constexpr unsigned kLineUnits = Operand::kAlongK ? 4 : kRows / kUnit;
  static constexpr unsigned kElements = kRows * kTileK;
  using Loader = TileLoader<Operand, kRows, kTileK>;

  /// Index of element `at` of `line`.
  static __device__ unsigned place(unsigned line, unsigned at) {
    const unsigned unit = at / kUnit;
    unsigned mixed;
    if constexpr (Operand::kAlongK || sizeof(Element) == 2) {
      // ldmatrix reads the same unit of 8 neighbouring lines.
      constexpr unsigned kLinesInAllBanks = kLineUnits < 8 ? 8 / kLineUnits : 1;
      mixed = unit ^ line / kLinesInAllBanks % (8 / kLinesInAllBanks);
    } else {
      mixed = unit ^ line % 4 * 2;  // load_fragment reads two neighbouring units of 4 lines
    }
    return (line * kLineUnits + mixed) * kUnit + at % kUnit;
  }

  static __device__ unsigned place_of(unsigned row, unsigned k) {
    return Operand::kAlongK ? place(row, k) : place(k, row);
  }

  static __device__ void put(Element* tile, const Loader& loader) {
    loader.for_each_pack([&](unsigned row, unsigned k, typename Loader::Bits bits) {
      if constexpr (std::is_same_v<Element, float>) {
#pragma unroll
        for (std::uint32_t& word : bits.value) word = round_to_tf32(__builtin_bit_cast(float, word));
      }
      *reinterpret_cast<typename Loader::Bits*>(tile + place_of(row, k)) = bits;
    });
  }

  /// Rows first_row ... first_row + 15 at one step of k, in four matrices of 8 rows and half of the step: for
  /// A (mma.h) rows come before k, for B the other way round, so that words 0, 1 and words 2, 3 are those of
  /// 8 columns each.
  template <bool IsA>
  static __device__ void load_fragment(std::uint32_t (&words)[4], const Element* tile, unsigned first_row,
                                       unsigned step) {
    const unsigned lane = threadIdx.x % kWarpSize;
    const auto row_of = [&](unsigned matrix) { return first_row + (IsA ? matrix % 2 : matrix / 2) * 8; };
    const auto k_of = [&](unsigned matrix) {
      return step * kStepK + (IsA ? matrix / 2 : matrix % 2) * (kStepK / 2);
    };
    if constexpr (Operand::kAlongK) {
      load_matrices(words, tile + place(row_of(lane / 8) + lane % 8, k_of(lane / 8)));
    } else if constexpr (sizeof(Element) == 2) {
      load_matrices_transposed(words, tile + place(k_of(lane / 8) + lane % 8, row_of(lane / 8)));
    } else {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i)
        words[i] = __builtin_bit_cast(std::uint32_t, tile[place(k_of(i) + lane % 4, row_of(i) + lane / 4)]);
    }
  }
};

/// The part of a tile of C that one warp computes.
template <unsigned kTileN>
struct WarpTile {
  static constexpr unsigned kWarpsN = kTileN / 32;
  static constexpr unsigned kRows = kTileM * kWarpsN / (kGemmThreads / kWarpSize);
  static constexpr unsigned kBlocksM = kRows / 16;
  static constexpr unsigned kBlocksN = 4;

  static __device__ unsigned first_row() { return threadIdx.x / kWarpSize / kWarpsN * kRows; }
  static __device__ unsigned first_column() { return threadIdx.x / kWarpSize % kWarpsN * 32; }

  /// Adds the products of one step of k.
  template <class TileA, class TileB, class Element>
  __device__ void multiply(const Element* tile_a, const Element* tile_b, unsigned step) {
    std::uint32_t b[kBlocksN][2];
#pragma unroll
    for (unsigned n = 0; n < kBlocksN; n += 2) {
      std::uint32_t words[4];
      TileB::template load_fragment<false>(words, tile_b, first_column() + n * 8, step);
      b[n][0] = words[0], b[n][1] = words[1];
      b[n + 1][0] = words[2], b[n + 1][1] = words[3];
    }
#pragma unroll
    for (unsigned m = 0; m < kBlocksM; ++m) {
      std::uint32_t a[4];
      TileA::template load_fragment<true>(a, tile_a, first_row() + m * 16, step);
#pragma unroll
      for (unsigned n = 0; n < kBlocksN; ++n) {
        if constexpr (sizeof(Element) == 2)
          mma_bf16(sums[m][n], a, b[n]);
        else
          mma_tf32(sums[m][n], a, b[n]);
      }
    }
  }

  // In f32: 32 columns, and what keeps the lanes of a store in separate banks.
  static constexpr unsigned kStagePitch = 40;
  static constexpr unsigned kStageElements = kGemmThreads / kWarpSize * 16 * kStagePitch;

  /// Hands the sums to the output, 16 rows at a time by way of the warp's own part of `stage`.
  template <class Output>
  __device__ void write(float* stage, std::size_t first_m, std::size_t first_n, const Output& output) const {
    constexpr unsigned kWidth = Output::kWidth;
    const unsigned lane = threadIdx.x % kWarpSize;
    stage += threadIdx.x / kWarpSize * 16 * kStagePitch;
#pragma unroll
    for (unsigned m = 0; m < kBlocksM; ++m) {
#pragma unroll
      for (unsigned n = 0; n < kBlocksN; ++n) {
        float* const at = stage + lane / 4 * kStagePitch + n * 8 + lane % 4 * 2;
        store(at, Pack<2>{{sums[m][n][0], sums[m][n][1]}});
        store(at + 8 * kStagePitch, Pack<2>{{sums[m][n][2], sums[m][n][3]}});
      }
      __syncwarp();
#pragma unroll
      for (unsigned i = 0; i < 16 / kWidth; ++i) {
        const unsigned at = (i * kWarpSize + lane) * kWidth, row = at / 32, column = at % 32;
        Pack<kWidth> pack;
#pragma unroll
        for (unsigned j = 0; j < kWidth; j += 4) {
          const Pack<4> part = load<4>(stage + row * kStagePitch + column + j);
#pragma unroll
          for (unsigned e = 0; e < 4; ++e) pack.value[j + e] = part.value[e];
        }
        output.write(first_m + first_row() + m * 16 + row, first_n + first_column() + column, pack);
      }
      __syncwarp();
    }
  }

  float sums[kBlocksM][kBlocksN][4] = {};
};

template <unsigned kTileN, class A, class B, class Output>
__global__ void __launch_bounds__(kGemmThreads)
    tensor_gemm_kernel(A a, B b, Output output, std::uint32_t k_total, std::uint32_t k_per_split,
                       std::size_t tiles_n) {
  using Element = typename A::Element;
  using TileA = TensorTile<A, kTileM>;
  using TileB = TensorTile<B, kTileN>;
  constexpr unsigned kTileK = TileA::kTileK;
  // Two pairs of tiles: one is read while the other is written.
  Element* const tiles = shared_memory<Element>();

  const std::size_t first_m = blockIdx.x / tiles_n * kTileM;
  const std::size_t first_n = blockIdx.x % tiles_n * kTileN;
  const std::uint32_t k_begin = blockIdx.z * k_per_split;
  const std::uint32_t k_end = k_begin + k_per_split < k_total ? k_begin + k_per_split : k_total;

  typename TileA::Loader loader_a(a, first_m);
  typename TileB::Loader loader_b(b, first_n);
  loader_a.fetch(a, k_begin, k_end);
  loader_b.fetch(b, k_begin, k_end);
  WarpTile<kTileN> warp_tile;
  unsigned current = 0;
  for (std::uint32_t k = k_begin; k < k_end; k += kTileK) {
    Element* const tile_a = tiles + current * (TileA::kElements + TileB::kElements);
    Element* const tile_b = tile_a + TileA::kElements;
    TileA::put(tile_a, loader_a);
    TileB::put(tile_b, loader_b);
    __syncthreads();
    loader_a.fetch(a, k + kTileK, k_end);
    loader_b.fetch(b, k + kTileK, k_end);
#pragma unroll
    for (unsigned step = 0; step < kTileK / TileA::kStepK; ++step)
      warp_tile.template multiply<TileA, TileB>(tile_a, tile_b, step);
    current ^= 1;
  }
  __syncthreads();  // the tiles have been read: their memory takes the sums
  warp_tile.write(reinterpret_cast<float*>(tiles), first_m, first_n, output);
}

/// Shared memory of tensor_gemm_kernel.
template <unsigned kTileN, class A, class B>
constexpr std::size_t tensor_gemm_bytes() {
  constexpr std::size_t kTiles =
      2 * (TensorTile<A, kTileM>::kElements + TensorTile<B, kTileN>::kElements) * sizeof(typename A::Element);
  return std::max(kTiles, WarpTile<kTileN>::kStageElements * sizeof(float));
}

}  // namespace annulus::kernels
