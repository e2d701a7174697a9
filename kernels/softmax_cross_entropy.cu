// One warp per row; a block's rows give one partial sum of statistics, and a second launch adds those in
// order.
#include "kernels/device/block_reduce.h"
#include "kernels/device/pack.h"
#include "kernels/softmax_cross_entropy.h"

namespace annulus::kernels::cuda {
namespace {

constexpr unsigned kWarps = 8;  // rows of a block

struct Statistics {
  double loss, hits, count;

  __device__ Statistics& operator+=(const Statistics& other) {
    loss += other.loss;
    hits += other.hits;
    count += other.count;
    return *this;
  }
};

// The largest value of a row and where it is first found.
struct Largest {
  float value;
  unsigned long long index;
};

struct LargerFirst {
  __device__ Largest operator()(const Largest& a, const Largest& b) const {
    if (a.value != b.value) return a.value > b.value ? a : b;
    return a.index < b.index ? a : b;
  }
};

__device__ Largest warp_largest(Largest mine) {
  for (unsigned distance = kWarpSize / 2; distance != 0; distance /= 2) {
    const Largest other{__shfl_xor_sync(0xffffffffu, mine.value, distance),
                        __shfl_xor_sync(0xffffffffu, mine.index, distance)};
    mine = LargerFirst()(mine, other);
  }
  return mine;
}

// One warp, one row; every lane returns the same statistics. With z' = z - max z and L = log sum exp z',
// the loss is (1 - smoothing) * (L - z'[label]) + smoothing * (L - mean z').
template <class T>
__device__ Statistics softmax_row(std::size_t classes, std::int32_t label, float smoothing, const T* logits,
                                  T* dlogits) {
  const unsigned lane = threadIdx.x % kWarpSize;
  Largest largest{-INFINITY, ~0ull};
  for (std::size_t c = lane; c < classes; c += kWarpSize)
    largest = LargerFirst()(largest, {to_float(logits[c]), c});
  largest = warp_largest(largest);

  float exponentials = 0;
  float shifted_sum = 0;
  for (std::size_t c = lane; c < classes; c += kWarpSize) {
    const float shifted = to_float(logits[c]) - largest.value;
    exponentials += expf(shifted);
    shifted_sum += shifted;
  }
  exponentials = warp_reduce(exponentials, Plus());
  shifted_sum = warp_reduce(shifted_sum, Plus());

  const float log_sum = logf(exponentials);
  const std::size_t target = static_cast<std::size_t>(label);
  float loss = (1 - smoothing) * (log_sum - (to_float(logits[target]) - largest.value));
  if (smoothing > 0) loss += smoothing * (log_sum - shifted_sum / static_cast<float>(classes));
  __syncwarp();  // dlogits may be logits: every lane has read the label's before one overwrites it

  if (dlogits != nullptr) {
    const float everywhere = smoothing / static_cast<float>(classes);
    for (std::size_t c = lane; c < classes; c += kWarpSize) {
      const float probability = expf(to_float(logits[c]) - largest.value) / exponentials;
      dlogits[c] = from_float<T>(probability - everywhere - (c == target ? 1 - smoothing : 0));
    }
  }
  return {loss, largest.index == target ? 1.0 : 0.0, 1.0};
}

template <class T>
__global__ void softmax_cross_entropy_kernel(std::size_t rows, std::size_t classes,
                                             const std::int32_t* labels, float smoothing, const T* logits,
                                             T* dlogits, Statistics* partials) {
  const unsigned warp = threadIdx.x / kWarpSize;
  const unsigned lane = threadIdx.x % kWarpSize;
  const std::size_t row = std::size_t{blockIdx.x} * kWarps + warp;
  Statistics mine{0, 0, 0};
  if (row < rows) {
    const std::int32_t label = labels[row];
    T* const gradient = dlogits == nullptr ? nullptr : dlogits + row * classes;
    if (label != kIgnoredLabel)
      mine = softmax_row(classes, label, smoothing, logits + row * classes, gradient);
    else if (gradient != nullptr)
      for (std::size_t c = lane; c < classes; c += kWarpSize) gradient[c] = from_float<T>(0);
  }
  Statistics* const per_warp = shared_memory<Statistics>();
  if (lane == 0) per_warp[warp] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  Statistics total{0, 0, 0};
  for (unsigned w = 0; w < kWarps; ++w) total += per_warp[w];
  partials[blockIdx.x] = total;
}

// One warp: lane l adds the partial sums l, l + 32, ...
__global__ void add_statistics_kernel(std::size_t blocks, const Statistics* partials, float* statistics) {
  Statistics total{0, 0, 0};
  for (std::size_t block = threadIdx.x; block < blocks; block += kWarpSize) total += partials[block];
  total.loss = warp_reduce(total.loss, Plus());
  total.hits = warp_reduce(total.hits, Plus());
  total.count = warp_reduce(total.count, Plus());
  if (threadIdx.x != 0) return;
  statistics[0] = static_cast<float>(total.loss);
  statistics[1] = static_cast<float>(total.hits);
  statistics[2] = static_cast<float>(total.count);
}

}  // namespace

std::size_t softmax_cross_entropy_workspace_bytes(std::size_t rows) {
  return blocks_for(rows, kWarps) * sizeof(Statistics);
}

void softmax_cross_entropy(StreamView stream, const Tensor& logits, const Tensor& labels,
                           float label_smoothing, void* workspace, const Tensor& dlogits,
                           const Tensor& statistics) {
  const std::size_t rows = logits.shape()[0];
  const std::size_t blocks = blocks_for(rows, kWarps);
  Statistics* const partials = static_cast<Statistics*>(workspace);
  visit_activation(logits.dtype(), [&]<class T>(T) {
    launch(stream, {blocks}, kWarps * kWarpSize, kWarps * sizeof(Statistics), softmax_cross_entropy_kernel<T>,
           rows, logits.shape()[1], labels.as<std::int32_t>(), label_smoothing, logits.as<T>(),
           dlogits.empty() ? nullptr : dlogits.as<T>(), partials);
  });
  launch(stream, {1}, kWarpSize, 0, add_statistics_kernel, blocks, partials, statistics.as<float>());
}

}  // namespace annulus::kernels::cuda
