// One faulty kernel or call per report of the virtual GPU.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/virtual_gpu/virtual_gpu.h"

namespace {

constexpr unsigned kThreads = 64;

// A device with a stream and an array, released at the end of the test.
class VirtualGpuReports : public ::testing::Test {
 protected:
  VirtualGpuReports() {
    cudaSetDevice(0);
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    cudaMalloc(reinterpret_cast<void**>(&array_), kThreads * sizeof(float));
  }
  ~VirtualGpuReports() override {
    cudaFree(array_);
    cudaStreamDestroy(stream_);
  }

  template <class... Parameters, class... Arguments>
  void run(dim3 blocks, dim3 threads, std::size_t shared_bytes, void (*kernel)(Parameters...),
           Arguments... arguments) {
    const cudaLaunchConfig_t config{blocks, threads, shared_bytes, stream_};
    cudaLaunchKernelEx(&config, kernel, arguments...);
    cudaStreamSynchronize(stream_);
  }

  cudaStream_t stream_ = nullptr;
  float* array_ = nullptr;
};

using VirtualGpuReportsDeathTest = VirtualGpuReports;

__global__ void write_at(float* to, std::size_t index) { to[index] = 1; }

__global__ void read_at(const float* from, float* to, std::size_t index) { to[0] = from[index] + 1; }

TEST_F(VirtualGpuReportsDeathTest, OutOfBounds) {
  EXPECT_DEATH(run(1, 1, 0, write_at, array_, kThreads), "out of bounds: write of 4 bytes touches byte 256");
  EXPECT_DEATH(run(1, 1, 0, write_at, array_, std::size_t{0} - 1),
               "out of bounds: .* 4 bytes before allocation");
}

TEST_F(VirtualGpuReportsDeathTest, UseAfterFree) {
  float* freed = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&freed), 4);
  cudaFree(freed);
  EXPECT_DEATH(run(1, 1, 0, write_at, freed, 0), "use after free: write of 4 bytes");
  EXPECT_DEATH(cudaFree(freed), "no live allocation starts");
}

TEST_F(VirtualGpuReportsDeathTest, ReadOfNeverWrittenGlobalMemory) {
  EXPECT_DEATH(run(1, 1, 0, read_at, array_, array_ + 1, 5), "never-written memory: byte 20 of allocation");
}

TEST_F(VirtualGpuReportsDeathTest, HostCodeTouchesDeviceMemory) {
  EXPECT_DEATH(static_cast<volatile float*>(array_)[0] = 1,
               "host code touches byte 0 of allocation .* of cuda:0");
}

TEST_F(VirtualGpuReportsDeathTest, DeviceCodeTouchesHostMemory) {
  static float on_host = 0;
  EXPECT_DEATH(run(1, 1, 0, write_at, &on_host, 0),
               "cuda:0 touches memory that is not its own: .*host memory");
}

TEST_F(VirtualGpuReportsDeathTest, DeviceCodeTouchesAnotherDevice) {
  cudaSetDevice(1);
  float* other = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&other), 4);
  cudaSetDevice(0);
  EXPECT_DEATH(run(1, 1, 0, write_at, other, 0), "cuda:0 touches memory that is not its own: .*of cuda:1");
  cudaFree(other);
}

__global__ void overrun_shared() { static_cast<float*>(virtual_gpu::shared_memory())[blockDim.x] = 1; }

TEST_F(VirtualGpuReportsDeathTest, SharedMemoryOutOfBounds) {
  EXPECT_DEATH(run(1, 8, 32, overrun_shared),
               "out of bounds: write of 4 bytes touches byte 32 of 32 bytes of shared");
}

__global__ void read_shared(float* to) {
  to[threadIdx.x] = static_cast<float*>(virtual_gpu::shared_memory())[threadIdx.x];
}

TEST_F(VirtualGpuReportsDeathTest, ReadOfNeverWrittenSharedMemory) {
  EXPECT_DEATH(run(1, 8, 32, read_shared, array_), "never-written memory: byte .* of shared memory");
}

__global__ void reverse(float* to, bool with_barrier) {
  float* const shared = static_cast<float*>(virtual_gpu::shared_memory());
  shared[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (with_barrier) __syncthreads();
  to[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

TEST_F(VirtualGpuReportsDeathTest, MissingBlockBarrier) {
  run(1, kThreads, kThreads * sizeof(float), reverse, array_, true);
  EXPECT_DEATH(run(1, kThreads, kThreads * sizeof(float), reverse, array_, false),
               "data race: |never-written memory");
}

__global__ void shift_within_warp(float* data, bool with_barrier) {
  data[threadIdx.x] = 1;
  if (with_barrier) __syncwarp();
  const float next = data[(threadIdx.x + 1) % 32];
  if (with_barrier) __syncwarp();
  data[threadIdx.x] = next;
}

TEST_F(VirtualGpuReportsDeathTest, MissingWarpBarrier) {
  run(1, 32, 0, shift_within_warp, array_, true);
  EXPECT_DEATH(run(1, 32, 0, shift_within_warp, array_, false), "data race: ");
}

__global__ void all_blocks_write(float* to) { to[0] = static_cast<float>(blockIdx.x); }

TEST_F(VirtualGpuReportsDeathTest, BlocksWriteTheSamePlace) {
  EXPECT_DEATH(run(2, 1, 0, all_blocks_write, array_), "data race: write of byte 0");
}

// Neighbouring threads write neighbouring elements of two bytes, or all the same one.
__global__ void write_halves(std::uint16_t* to, unsigned elements) {
  to[threadIdx.x % elements] = static_cast<std::uint16_t>(threadIdx.x);
}

__global__ void write_words(float* to) { to[threadIdx.x] = 1; }

__global__ void write_bytes_of_a_word(float* word) {
  reinterpret_cast<unsigned char*>(word)[threadIdx.x % 4] = 1;
}

// One thread writes a word, another reads half of it.
__global__ void mix_widths(float* data, std::uint16_t* to, bool with_barrier) {
  if (threadIdx.x == 0) data[0] = 1;
  if (with_barrier) __syncthreads();
  if (threadIdx.x == 40) to[0] = reinterpret_cast<const std::uint16_t*>(data)[1];
}

TEST_F(VirtualGpuReportsDeathTest, RacesOfNarrowAccesses) {
  auto* const halves = reinterpret_cast<std::uint16_t*>(array_);
  for (int i = 0; i < 3; ++i) {  // the histories of words and of their bytes take turns
    run(1, kThreads, 0, write_halves, halves, kThreads);
    run(1, 4, 0, write_bytes_of_a_word, array_);
    run(1, kThreads, 0, write_words, array_);
    run(1, kThreads, 0, mix_widths, array_, halves + 8, true);
  }
  EXPECT_DEATH(run(1, kThreads, 0, write_halves, halves, kThreads - 1), "data race: write of byte 0");
  EXPECT_DEATH(run(1, 5, 0, write_bytes_of_a_word, array_), "data race: write of byte 0");
  EXPECT_DEATH(run(2, 1, 0, write_bytes_of_a_word, array_), "data race: write of byte 0");
  EXPECT_DEATH(run(1, kThreads, 0, mix_widths, array_, halves + 8, false),
               "data race: (read of byte 2|write of byte 2)|never-written");
}

__global__ void half_at_barrier() {
  if (threadIdx.x < blockDim.x / 2) __syncthreads();
}

TEST_F(VirtualGpuReportsDeathTest, BarrierDivergence) {
  EXPECT_DEATH(run(1, 64, 0, half_at_barrier), "barrier divergence: 32 of 64 threads");
}

__global__ void half_of_warp(float* to) {
  if (threadIdx.x < 16) to[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
}

__global__ void two_masks() { __syncwarp(threadIdx.x < 16 ? 0xffffffffu : 0xffff0000u); }

TEST_F(VirtualGpuReportsDeathTest, WarpDivergence) {
  EXPECT_DEATH(run(1, 32, 0, half_of_warp, array_),
               "warp divergence: the mask 0xffffffff .* has exited|divergence");
  EXPECT_DEATH(run(1, 16, 0, half_of_warp, array_), "warp divergence: .* does not exist");
  EXPECT_DEATH(run(1, 32, 0, two_masks), "warp divergence: .* (with the masks|has exited)");
}

struct alignas(16) Four {
  float value[4];
};

__global__ void copy_four(const float* from, float* to) {
  *reinterpret_cast<Four*>(to) = *reinterpret_cast<const Four*>(from);
}

TEST_F(VirtualGpuReportsDeathTest, MisalignedVectorAccess) {
  cudaMemsetAsync(array_, 0, kThreads * sizeof(float), stream_);
  run(1, 1, 0, copy_four, array_ + 4, array_ + 8);
  EXPECT_DEATH(run(1, 1, 0, copy_four, array_ + 1, array_ + 8), "misaligned access: .* multiple of 16");
}

__global__ void nothing() {}

TEST_F(VirtualGpuReportsDeathTest, LaunchLimits) {
  EXPECT_DEATH(run(1, 1025, 0, nothing), "launch limits exceeded: .* 1025 threads in x");
  EXPECT_DEATH(run(1, dim3(64, 32), 0, nothing), "launch limits exceeded: .* 2048 threads in a block");
  EXPECT_DEATH(run(1, 32, 49153, nothing), "launch limits exceeded: .* 49153 bytes of dynamic shared memory");
  EXPECT_DEATH(run(dim3(1, 65536), 32, 0, nothing), "launch limits exceeded: .* 65536 blocks in y");
  EXPECT_DEATH(run(0, 32, 0, nothing), "launch limits exceeded: .* 0 blocks in x");
}

TEST_F(VirtualGpuReportsDeathTest, DeviceIsNotCurrent) {
  cudaSetDevice(1);
  EXPECT_DEATH(run(1, 1, 0, nothing), "the stream is of cuda:0, but cuda:1 is current");
  cudaSetDevice(0);
}

TEST_F(VirtualGpuReportsDeathTest, CopyOutOfBounds) {
  std::vector<float> host(kThreads + 1);
  EXPECT_DEATH(
      {
        cudaMemcpyAsync(array_, host.data(), host.size() * sizeof(float), cudaMemcpyDefault, stream_);
        cudaStreamSynchronize(stream_);
      },
      "cudaMemcpyAsync of 260 bytes touches byte 256");
}

TEST_F(VirtualGpuReportsDeathTest, PinnedMemoryFreedTooEarly) {
  EXPECT_DEATH(
      {
        virtual_gpu::set_seed(0);  // lazy: nothing runs before it must
        void* pinned = nullptr;
        cudaHostAlloc(&pinned, 4, cudaHostAllocDefault);
        cudaMemcpyAsync(array_, pinned, 4, cudaMemcpyDefault, stream_);
        cudaFreeHost(pinned);
        cudaStreamSynchronize(stream_);
      },
      "after its page-locked host memory was freed");
}

TEST_F(VirtualGpuReportsDeathTest, DestroyedStream) {
  cudaStream_t other = nullptr;
  cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
  cudaStreamDestroy(other);
  EXPECT_DEATH(cudaStreamSynchronize(other), "the stream was destroyed or never created");
}

TEST(VirtualGpuExitDeathTest, Leaks) {
  EXPECT_EXIT(
      {
        void* leaked = nullptr;
        cudaMalloc(&leaked, 8);
        std::exit(0);
      },
      ::testing::ExitedWithCode(1), "not released at exit:\n *allocation .* of cuda:0: 8 bytes");
}

}  // namespace
