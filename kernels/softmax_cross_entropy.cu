#include <cmath>

#include "kernels/device/block_reduce.h"
#include "kernels/softmax_cross_entropy.h"

namespace annulus::kernels::cuda {
namespace {

constexpr unsigned kWarps = 32;

struct Statistics {
  double loss, hits, count;
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
__device__ Statistics softmax_row(std::size_t classes, std::int32_t label, float smoothing,
                                  const float* logits, float* dlogits) {
  const unsigned lane = threadIdx.x % kWarpSize;
  Largest largest{-INFINITY, ~0ull};
  for (std::size_t c = lane; c < classes; c += kWarpSize) largest = LargerFirst()(largest, {logits[c], c});
  largest = warp_largest(largest);

  float exponentials = 0;
  float shifted_sum = 0;
  for (std::size_t c = lane; c < classes; c += kWarpSize) {
    const float shifted = logits[c] - largest.value;
    exponentials += expf(shifted);
    shifted_sum += shifted;
  }
  exponentials = warp_reduce(exponentials, Plus());
  shifted_sum = warp_reduce(shifted_sum, Plus());

  const float log_sum = logf(exponentials);
  const std::size_t target = static_cast<std::size_t>(label);
  float loss = (1 - smoothing) * (log_sum - (logits[target] - largest.value));
  if (smoothing > 0) loss += smoothing * (log_sum - shifted_sum / static_cast<float>(classes));
  __syncwarp();  // dlogits may be logits: every lane has read the label's before one overwrites it

  if (dlogits != nullptr) {
    const float everywhere = smoothing / static_cast<float>(classes);
    for (std::size_t c = lane; c < classes; c += kWarpSize) {
      const float probability = expf(logits[c] - largest.value) / exponentials;
      dlogits[c] = probability - everywhere - (c == target ? 1 - smoothing : 0);
    }
  }
  return {loss, largest.index == target ? 1.0 : 0.0, 1.0};
}

// A single block, so that the statistics are complete and in a fixed order without a second launch: warp w
// takes rows w, w + 32, ...
__global__ void softmax_cross_entropy_kernel(std::size_t rows, std::size_t classes,
                                             const std::int32_t* labels, float smoothing, const float* logits,
                                             float* dlogits, float* statistics) {
  const unsigned warp = threadIdx.x / kWarpSize;
  const unsigned lane = threadIdx.x % kWarpSize;
  Statistics total{0, 0, 0};
  for (std::size_t row = warp; row < rows; row += kWarps) {
    const std::int32_t label = labels[row];
    float* const gradient = dlogits == nullptr ? nullptr : dlogits + row * classes;
    if (label == kIgnoredLabel) {
      if (gradient != nullptr)
        for (std::size_t c = lane; c < classes; c += kWarpSize) gradient[c] = 0;
      continue;
    }
    const Statistics one = softmax_row(classes, label, smoothing, logits + row * classes, gradient);
    total.loss += one.loss;
    total.hits += one.hits;
    total.count += one.count;
  }
  Statistics* const per_warp = shared_memory<Statistics>();
  if (lane == 0) per_warp[warp] = total;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned w = 1; w < kWarps; ++w) {
    total.loss += per_warp[w].loss;
    total.hits += per_warp[w].hits;
    total.count += per_warp[w].count;
  }
  statistics[0] = static_cast<float>(total.loss);
  statistics[1] = static_cast<float>(total.hits);
  statistics[2] = static_cast<float>(total.count);
}

}  // namespace

void softmax_cross_entropy(StreamView stream, const Tensor& logits, const Tensor& labels,
                           float label_smoothing, const Tensor& dlogits, const Tensor& statistics) {
  launch(stream, {1}, kWarps * kWarpSize, kWarps * sizeof(Statistics), softmax_cross_entropy_kernel,
         logits.shape()[0], logits.shape()[1], labels.as<std::int32_t>(), label_smoothing, logits.as<float>(),
         dlogits.empty() ? nullptr : dlogits.as<float>(), statistics.as<float>());
}

}  // namespace annulus::kernels::cuda
