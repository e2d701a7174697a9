// Sums and the like over the threads of a block, in a fixed order.
#pragma once

#include "kernels/device/launch.h"

namespace annulus::kernels {

/// Combines `value` over all threads of a one-dimensional block whose size is a power of two: the upper half
/// into the lower half, again and again. Every thread gets the result. `shared` holds one T per thread and
/// may be used again on return.
template <class T, class Combine>
__device__ T block_reduce(T value, T* shared, Combine combine) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half != 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + half]);
    __syncthreads();
  }
  const T result = shared[0];
  __syncthreads();
  return result;
}

/// Combines `value` over the 32 lanes of a full warp; every lane gets the result. `combine` is commutative.
template <class T, class Combine>
__device__ T warp_reduce(T value, Combine combine) {
  for (unsigned distance = kWarpSize / 2; distance != 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  return value;
}

struct Plus {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

}  // namespace annulus::kernels
