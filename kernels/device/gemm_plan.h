// How every matrix product C[m][n] = sum over k of A(m, k) B(n, k) is cut into blocks, whatever multiplies:
// tiled_gemm.h on the CUDA cores, tensor_gemm.h on the tensor cores. gemm.h starts the right one.
//
// What A, B and C are is up to the caller. An operand is a struct with
//   Element                         float or BFloat16
//   static constexpr bool kAlongK   its packs run along k (true) or along its own axis, m or n (false)
//   static constexpr int kWidth     elements of a pack: 1, or 16 bytes
//   Line line(i)                    everything about row i of A or B that does not depend on k
//   PackBits<Element, kWidth> load(line, k)
//                                   the pack of (i, k); zeros beyond the operand's extents
// and an output is a struct with
//   static constexpr int kWidth     elements that it likes to take together, a power of two up to 8
//   void write(m, n, pack)          takes the f32 C[m][n ...]; ignores what is beyond its extents
//
// With few tiles and a long k, the blocks of grid.z share it, and a second kernel adds their parts in order.
#pragma once

#include <algorithm>

#include "core/base/half.h"
#include "core/base/precision.h"
#include "kernels/device/pack.h"

namespace annulus::kernels {

inline constexpr unsigned kGemmThreads = 256;

/// Rows of C that a block computes.
inline constexpr unsigned kTileM = 128;

/// Columns of A and B that a block moves to shared memory at a time: for tensor cores 64 bytes of a row.
ANNULUS_HOST_DEVICE constexpr unsigned tile_k(Precision precision) {
  return precision == Precision::bf16 ? 32 : 16;
}

/// What a precision's products read.
template <Precision precision>
using ElementOf = std::conditional_t<precision == Precision::bf16, BFloat16, float>;

/// `Width` elements as words of 32 bits, or as one of 16: the compiler takes packs of 16-bit elements apart.
template <class T, int Width>
using PackBits = std::conditional_t<Width * sizeof(T) == 2, Pack<1, std::uint16_t>,
                                    Pack<(Width * sizeof(T) + 3) / 4, std::uint32_t>>;

template <int Width, class T>
__device__ PackBits<T, Width> load_bits(const T* from) {
  return *reinterpret_cast<const PackBits<T, Width>*>(from);
}

struct GemmShape {
  std::size_t m = 0, n = 0, k = 0;
};

/// Steps along k are counted in 32 bits, and some operands divide them with FastDivisor.
inline constexpr std::size_t kMostK = std::size_t{1} << 31;

/// How a product is cut; depends on shape and precision alone, so that its bits do too.
struct GemmPlan {
  GemmShape shape;
  std::size_t tile_n = 0;  ///< columns of C that a block computes: 32, 64 or 128
  std::size_t splits = 1;
  std::size_t k_per_split = 0;

  /// Throws ShapeError if k is 2^31 or more.
  GemmPlan(GemmShape gemm_shape, Precision precision) : shape(gemm_shape) {
    require<ShapeError>(shape.k < kMostK,
                        "a matrix product [{}, {}] sums {} products; at most {} are supported: use a smaller "
                        "micro-batch",
                        shape.m, shape.n, shape.k, kMostK - 1);
    constexpr std::size_t kWantedBlocks = 256;  // about two for each multiprocessor of a large device
    constexpr std::size_t kLeastK = 128;        // below that, a part is not worth its second pass
    // Wide tiles read less, narrow ones keep more multiprocessors busy.
    const std::size_t widest = precision == Precision::f32 ? 64 : 128;
    tile_n = shape.n <= 32 ? 32 : 64;
    if (shape.n > 64 && blocks_for(shape.m, kTileM) * blocks_for(shape.n, widest) >= kWantedBlocks / 2)
      tile_n = widest;
    const std::size_t tiles = blocks_for(shape.m, kTileM) * blocks_for(shape.n, tile_n);
    const std::size_t most = std::max<std::size_t>(shape.k / kLeastK, 1);
    splits = std::clamp<std::size_t>(kWantedBlocks / std::max<std::size_t>(tiles, 1), 1, most);
    k_per_split = blocks_for(blocks_for(shape.k, splits), tile_k(precision)) * tile_k(precision);
    splits = std::max<std::size_t>(blocks_for(shape.k, std::max<std::size_t>(k_per_split, 1)), 1);
  }

  /// f32 elements of workspace for the parts.
  std::size_t workspace_elements() const { return splits == 1 ? 0 : splits * shape.m * shape.n; }
};

/// `output`, or part `blockIdx.z` of [splits, m, n] if the product is split.
template <class Output>
struct SplitOutput {
  static constexpr int kWidth = Output::kWidth;

  Output output;
  float* parts;  // null if it is not
  GemmShape shape;

  template <int Width>
  __device__ void write(std::size_t m, std::size_t n, const Pack<Width>& pack) const {
    if (parts == nullptr) {
      output.write(m, n, pack);
      return;
    }
    if (m >= shape.m) return;
    float* const row = parts + (blockIdx.z * shape.m + m) * shape.n;
    for (int i = 0; i < Width; ++i)
      if (n + i < shape.n) row[n + i] = pack.value[i];
  }
};

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

/// The packs of one operand's tile, kRows by kTileK, that one thread moves from global to shared memory.
template <class Operand, unsigned kRows, unsigned kTileK>
struct TileLoader {
  using Element = typename Operand::Element;
  static constexpr unsigned kWidth = Operand::kWidth;
  using Bits = PackBits<Element, Operand::kWidth>;
  static constexpr unsigned kTilePacks = kRows * kTileK / kWidth;
  static constexpr unsigned kPacks = (kTilePacks + kGemmThreads - 1) / kGemmThreads;

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

  __device__ void fetch(const Operand& operand, std::uint32_t k, std::uint32_t k_end) {
#pragma unroll
    for (unsigned i = 0; i < kPacks; ++i)
      packs[i] = has(i) && k + k_of(i) < k_end ? operand.load(lines[i], k + k_of(i)) : Bits{};
  }

  /// Calls put(row, k, bits) for every pack, by their places in the tile.
  template <class Put>
  __device__ void for_each_pack(Put put) const {
#pragma unroll
    for (unsigned i = 0; i < kPacks; ++i)
      if (has(i)) put(row_of(i), k_of(i), packs[i]);
  }

  typename Operand::Line lines[kPacks];
  Bits packs[kPacks];
};

}  // namespace annulus::kernels
