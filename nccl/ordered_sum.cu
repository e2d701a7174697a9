// The sum over ranks in the fixed tree, of elements that a device has received from the others.
#include <cstdint>

#include "core/base/cuda_check.h"
#include "core/base/half.h"
#include "nccl/ordered_sum.h"

namespace annulus {
namespace {

constexpr int kLevels = 10;  // of the tree: 2^10 - 1 ranks
static_assert(kMostRanksOnDevice < 1 << kLevels);
constexpr unsigned kThreads = 256;
constexpr std::size_t kMostBlocks = 2048;  // enough to fill any device; each goes round in a loop

// How an element type is added: integers as unsigned ones, which may wrap around, 16-bit formats in f32.
template <class T>
struct Plain {
  using Element = T;
  using Sum = T;
  __device__ static Sum load(Element value) { return value; }
  __device__ static Element store(Sum value) { return value; }
};

template <class T>
struct Half {
  using Element = T;
  using Sum = float;
  __device__ static Sum load(Element value) { return to_float(value); }
  __device__ static Element store(Sum value) { return from_float<Element>(value); }
};

// A binary counter of sums: adding rank r's value carries as adding one to r does. Loops over the levels are
// unrolled, so that the sums stay in registers.
template <class Type>
__global__ void ordered_sum_kernel(typename Type::Element* own, const typename Type::Element* received,
                                   std::size_t stride, int rank, int ranks, std::size_t count) {
  using Sum = typename Type::Sum;
  const std::size_t threads = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += threads) {
    Sum sums[kLevels] = {};
    for (int source = 0; source < ranks; ++source) {
      const std::size_t place = static_cast<std::size_t>(source < rank ? source : source - 1);
      Sum value = Type::load(source == rank ? own[i] : received[place * stride + i]);
      bool carries = true;
#pragma unroll
      for (int level = 0; level < kLevels; ++level) {
        const bool is_set = (source >> level & 1) != 0;
        if (carries && is_set) value = static_cast<Sum>(sums[level] + value);
        if (carries && !is_set) sums[level] = value;
        carries = carries && is_set;
      }
    }
    // What is left: one sum for every bit of the number of ranks, of later ranks at lower levels.
    Sum total = {};
    bool has_total = false;
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      if ((ranks >> level & 1) == 0) continue;
      total = has_total ? static_cast<Sum>(sums[level] + total) : sums[level];
      has_total = true;
    }
    own[i] = Type::store(total);
  }
}

template <class Type>
void launch(StreamView stream, void* own, const void* received, std::size_t stride, int rank, int ranks,
            std::size_t count) {
  using Element = typename Type::Element;
  const std::size_t blocks = (count + kThreads - 1) / kThreads;
  const DeviceGuard guard(stream.device());
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks));
  config.blockDim = dim3(kThreads);
  config.stream = static_cast<cudaStream_t>(stream.handle());
  ANNULUS_CUDA_CHECK(cudaLaunchKernelEx(&config, ordered_sum_kernel<Type>, static_cast<Element*>(own),
                                        static_cast<const Element*>(received), stride, rank, ranks, count));
}

}  // namespace

void ordered_sum_on_device(StreamView stream, void* own, const void* received, std::size_t stride, int rank,
                           int ranks, std::size_t count, DType dtype) {
  require<ShapeError>(ranks <= kMostRanksOnDevice, "cannot sum over {} ranks; {} are possible", ranks,
                      kMostRanksOnDevice);
  if (count == 0) return;
  switch (dtype) {
    case DType::f32:
      return launch<Plain<float>>(stream, own, received, stride, rank, ranks, count);
    case DType::f64:
      return launch<Plain<double>>(stream, own, received, stride, rank, ranks, count);
    case DType::bf16:
      return launch<Half<BFloat16>>(stream, own, received, stride, rank, ranks, count);
    case DType::f16:
      return launch<Half<Float16>>(stream, own, received, stride, rank, ranks, count);
    case DType::i32:
      return launch<Plain<std::uint32_t>>(stream, own, received, stride, rank, ranks, count);
    case DType::i64:
      return launch<Plain<std::uint64_t>>(stream, own, received, stride, rank, ranks, count);
    case DType::u8:
      return launch<Plain<std::uint8_t>>(stream, own, received, stride, rank, ranks, count);
  }
  fail<ShapeError>("cannot sum elements of dtype {}", static_cast<int>(dtype));
}

}  // namespace annulus
