#include <algorithm>
#include <cstdint>

#include "kernels/device/block_reduce.h"
#include "kernels/device/pack.h"
#include "kernels/reduce.h"

namespace annulus::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::size_t kElementsPerBlock = 16384;
constexpr std::size_t kMostBlocks = 1024;

// Depends on the count alone, so that the order of the sum does too.
std::size_t block_count(std::size_t elements) {
  return std::clamp<std::size_t>(blocks_for(elements, kElementsPerBlock), 1, kMostBlocks);
}

// A reduction is: the value of no element, of one element, the combination of two, and the result.
// Sums run in f64: more exact than pairwise f32, and hidden behind the memory accesses.
struct Sum {
  using Value = double;
  using Result = float;
  static __device__ Value none() { return 0; }
  static __device__ Value of(float x, std::size_t) { return x; }
  __device__ Value operator()(Value a, Value b) const { return a + b; }
};

struct SquaredNorm : Sum {
  static __device__ Value of(float x, std::size_t) { return static_cast<double>(x) * x; }
};

// NaN is larger than any number.
struct AbsMax {
  using Value = float;
  using Result = float;
  static __device__ Value none() { return 0; }
  static __device__ Value of(float x, std::size_t) { return fabsf(x); }
  __device__ Value operator()(Value a, Value b) const { return a > b || isnan(a) ? a : b; }
};

struct FirstNonFinite {
  using Value = std::int64_t;
  using Result = std::int64_t;
  static __device__ Value none() { return -1; }
  static __device__ Value of(float x, std::size_t index) {
    return isfinite(x) ? -1 : static_cast<std::int64_t>(index);
  }
  // -1 is the largest unsigned number: the smaller one is the first index, if there is any.
  __device__ Value operator()(Value a, Value b) const {
    return static_cast<std::uint64_t>(a) < static_cast<std::uint64_t>(b) ? a : b;
  }
};

// `before` elements come before the first aligned pack.
template <class Reduction, class T>
__global__ void reduce_blocks_kernel(std::size_t count, std::size_t before, const T* x,
                                     typename Reduction::Value* partials) {
  constexpr int kWidth = kPackWidth<T>;
  const Reduction combine;
  typename Reduction::Value value = Reduction::none();
  const std::size_t packs = (count - before) / kWidth;
  for (std::size_t i = global_thread(); i < packs; i += global_threads()) {
    const Pack<kWidth> pack = load_float<kWidth>(x + before + i * kWidth);
#pragma unroll
    for (int e = 0; e < kWidth; ++e)
      value = combine(value, Reduction::of(pack.value[e], before + i * kWidth + e));
  }
  for (std::size_t i = global_thread(); i < count - packs * kWidth; i += global_threads()) {
    const std::size_t element = i < before ? i : i + packs * kWidth;
    value = combine(value, Reduction::of(to_float(x[element]), element));
  }
  value = block_reduce(value, shared_memory<typename Reduction::Value>(), combine);
  if (threadIdx.x == 0) partials[blockIdx.x] = value;
}

template <class Reduction>
__global__ void reduce_partials_kernel(std::size_t blocks, const typename Reduction::Value* partials,
                                       typename Reduction::Result* result) {
  const Reduction combine;
  typename Reduction::Value value = Reduction::none();
  for (std::size_t i = threadIdx.x; i < blocks; i += blockDim.x) value = combine(value, partials[i]);
  value = block_reduce(value, shared_memory<typename Reduction::Value>(), combine);
  if (threadIdx.x == 0) *result = static_cast<typename Reduction::Result>(value);
}

template <class Reduction>
void reduce(StreamView stream, const Tensor& x, void* workspace, const Tensor& result) {
  using Value = typename Reduction::Value;
  const std::size_t blocks = block_count(x.elements());
  Value* const partials = static_cast<Value*>(workspace);
  visit_activation(x.dtype(), [&]<class T>(T) {
    launch(stream, {blocks}, kThreads, kThreads * sizeof(Value), reduce_blocks_kernel<Reduction, T>,
           x.elements(), elements_before_first_pack(x.elements(), kPackWidth<T>, {x}), x.as<T>(), partials);
  });
  launch(stream, {1}, kThreads, kThreads * sizeof(Value), reduce_partials_kernel<Reduction>, blocks, partials,
         result.as<typename Reduction::Result>());
}

}  // namespace

std::size_t reduce_workspace_bytes(std::size_t elements) { return block_count(elements) * sizeof(double); }

void sum(StreamView stream, const Tensor& x, void* workspace, const Tensor& result) {
  reduce<Sum>(stream, x, workspace, result);
}

void squared_norm(StreamView stream, const Tensor& x, void* workspace, const Tensor& result) {
  reduce<SquaredNorm>(stream, x, workspace, result);
}

void absmax(StreamView stream, const Tensor& x, void* workspace, const Tensor& result) {
  reduce<AbsMax>(stream, x, workspace, result);
}

void first_non_finite(StreamView stream, const Tensor& x, void* workspace, const Tensor& result) {
  reduce<FirstNonFinite>(stream, x, workspace, result);
}

}  // namespace annulus::kernels::cuda
