// Arrays beyond 2^31 elements that take no memory: a launch of a few of their blocks shows what is wrong with
// the arithmetic of indices.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/virtual_gpu/virtual_gpu.h"

namespace {

using virtual_gpu::OnlyBlocks;
using virtual_gpu::SparseAllocations;
using virtual_gpu::SparseContents;

constexpr std::size_t kElements = (std::size_t{1} << 31) + 5;
constexpr unsigned kThreads = 128;

std::vector<std::size_t> last_block(std::size_t blocks) { return {blocks - 1}; }

template <class Index>
__global__ void add_one(std::size_t count, const float* x, float* y) {
  const Index i =
      static_cast<Index>(blockIdx.x) * static_cast<Index>(blockDim.x) + static_cast<Index>(threadIdx.x);
  if (i < static_cast<Index>(count)) y[i] = x[i] + 1;
}

// The subtle one: the index fits, the byte offset does not.
__global__ void add_one_with_wide_index(std::size_t count, const float* x, float* y) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const unsigned offset = static_cast<unsigned>(i * sizeof(float));
  y[i] = *reinterpret_cast<const float*>(reinterpret_cast<const char*>(x) + offset) + 1;
}

class VirtualGpuSparse : public ::testing::Test {
 protected:
  VirtualGpuSparse() {
    cudaSetDevice(0);
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    const SparseAllocations sparse(SparseContents::unwritten);
    for (float** array : {&x_, &y_, &more_})
      EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(array), kElements * sizeof(float)), cudaSuccess);
  }
  ~VirtualGpuSparse() override {
    for (float* array : {x_, y_, more_}) cudaFree(array);
    cudaStreamDestroy(stream_);
  }

  void copy(float* to, const float* from, std::size_t count) {
    cudaMemcpyAsync(to, from, count * sizeof(float), cudaMemcpyDefault, stream_);
    cudaStreamSynchronize(stream_);
  }

  void run_last_block(void (*kernel)(std::size_t, const float*, float*)) {
    const OnlyBlocks only(last_block);
    const unsigned blocks = static_cast<unsigned>((kElements + kThreads - 1) / kThreads);
    const cudaLaunchConfig_t config{blocks, kThreads, 0, stream_};
    cudaLaunchKernelEx(&config, kernel, kElements, static_cast<const float*>(x_), y_);
    cudaStreamSynchronize(stream_);
  }

  cudaStream_t stream_ = nullptr;
  float* x_ = nullptr;
  float* y_ = nullptr;
  float* more_ = nullptr;
};

using VirtualGpuSparseDeathTest = VirtualGpuSparse;

TEST_F(VirtualGpuSparse, TheLastElementsOfALargeArray) {
  const std::vector<float> last{1, 2, 3, 4, 5};
  copy(x_ + kElements - 5, last.data(), 5);
  run_last_block(add_one<std::size_t>);
  std::vector<float> result(5);
  copy(result.data(), y_ + kElements - 5, 5);
  EXPECT_EQ(result, (std::vector<float>{2, 3, 4, 5, 6}));
  EXPECT_EQ(virtual_gpu::ledger(0).allocated_bytes, 3 * kElements * sizeof(float));
}

TEST_F(VirtualGpuSparseDeathTest, AnIndexThatOverflows) {
  const std::vector<float> last{1, 2, 3, 4, 5};
  copy(x_ + kElements - 5, last.data(), 5);
  EXPECT_DEATH(run_last_block(add_one<int>), "touches memory that is not its own|out of bounds: ");
  EXPECT_DEATH(run_last_block(add_one_with_wide_index),
               "never-written memory: byte (0|4|8|12|16) of allocation");
}

TEST_F(VirtualGpuSparseDeathTest, WhatIsReadMustHaveBeenWritten) {
  EXPECT_DEATH(run_last_block(add_one<std::size_t>), "never-written memory: byte 85899.* of allocation");
  const SparseAllocations sparse(SparseContents::zeros);
  float* zeros = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&zeros), kElements * sizeof(float));
  std::swap(x_, zeros);
  run_last_block(add_one<std::size_t>);
  float result = 0;
  copy(&result, y_ + kElements - 1, 1);
  EXPECT_EQ(result, 1);
  // A copy within the device carries the fact along.
  copy(more_, x_ + kElements - 1, 1);
  copy(&result, more_, 1);
  EXPECT_EQ(result, 0);
  std::swap(x_, zeros);
  cudaFree(zeros);
}

TEST_F(VirtualGpuSparseDeathTest, BoundsAndFreedMemory) {
  EXPECT_DEATH(copy(more_ + kElements - 1, std::vector<float>(2).data(), 2),
               "cudaMemcpyAsync of 8 bytes touches byte 8589934612");
  float* freed = nullptr;
  {
    const SparseAllocations sparse(SparseContents::zeros);
    cudaMalloc(reinterpret_cast<void**>(&freed), kElements * sizeof(float));
  }
  const float one = 1;
  copy(freed + kElements / 2, &one, 1);
  cudaFree(freed);
  EXPECT_DEATH(copy(freed + kElements / 2, &one, 1), "touches byte .* of the freed allocation");
}

TEST_F(VirtualGpuSparseDeathTest, BlocksThatDoNotExist) {
  const OnlyBlocks only([](std::size_t blocks) { return std::vector<std::size_t>{blocks}; });
  const cudaLaunchConfig_t config{7, 1, 0, stream_};
  EXPECT_DEATH(
      cudaLaunchKernelEx(&config, add_one<std::size_t>, std::size_t{1}, static_cast<const float*>(x_), y_),
      "a test must choose blocks 0 to 6 of");
}

}  // namespace
