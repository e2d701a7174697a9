// What the programming model orders happens in order under every seed; what it leaves open does not.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/virtual_gpu/virtual_gpu.h"

namespace {

constexpr std::uint64_t kSeeds = 30;

__global__ void set(float* to, float value) { *to = value; }
__global__ void add_ten(float* to) { *to += 10; }

class VirtualGpuSchedule : public ::testing::Test {
 protected:
  VirtualGpuSchedule() {
    cudaSetDevice(0);
    for (cudaStream_t& stream : streams_) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
    cudaMalloc(reinterpret_cast<void**>(&value_), sizeof(float));
    cudaHostAlloc(reinterpret_cast<void**>(&pinned_), sizeof(float), cudaHostAllocDefault);
    launch(streams_[0], set, value_, 0.0f);
  }
  ~VirtualGpuSchedule() override {
    cudaFree(value_);
    cudaFreeHost(pinned_);
    cudaEventDestroy(event_);
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }

  template <class... Parameters, class... Arguments>
  static void launch(cudaStream_t stream, void (*kernel)(Parameters...), Arguments... arguments) {
    const cudaLaunchConfig_t config{1, 1, 0, stream};
    cudaLaunchKernelEx(&config, kernel, arguments...);
  }

  // set(1) on one stream and +10 on the other, with or without an edge between them.
  float set_then_add(bool with_event) {
    launch(streams_[0], set, value_, 1.0f);
    if (with_event) {
      cudaEventRecord(event_, streams_[0]);
      cudaStreamWaitEvent(streams_[1], event_, 0);
    }
    launch(streams_[1], add_ten, value_);
    cudaStreamSynchronize(streams_[1]);
    cudaStreamSynchronize(streams_[0]);
    float result = 0;
    cudaMemcpyAsync(&result, value_, sizeof(float), cudaMemcpyDefault, streams_[0]);
    return result;
  }

  cudaStream_t streams_[2] = {};
  cudaEvent_t event_ = nullptr;
  float* value_ = nullptr;
  float* pinned_ = nullptr;
};

TEST_F(VirtualGpuSchedule, AnEventOrdersTwoStreams) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    virtual_gpu::set_seed(seed);
    EXPECT_EQ(set_then_add(true), 11) << "seed " << seed;
  }
}

TEST_F(VirtualGpuSchedule, AMissingEventShows) {
  std::set<float> results;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    virtual_gpu::set_seed(seed);
    results.insert(set_then_add(false));
  }
  EXPECT_EQ(results, (std::set<float>{1, 11}));
}

TEST_F(VirtualGpuSchedule, AMissingSynchronizeShows) {
  std::set<float> results;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    virtual_gpu::set_seed(seed);
    *pinned_ = 7;
    launch(streams_[0], set, value_, 1.0f);
    cudaMemcpyAsync(pinned_, value_, sizeof(float), cudaMemcpyDefault, streams_[0]);
    results.insert(*pinned_);
    cudaStreamSynchronize(streams_[0]);
    EXPECT_EQ(*pinned_, 1);
  }
  EXPECT_EQ(results, (std::set<float>{1, 7}));
}

TEST_F(VirtualGpuSchedule, AnEventIsReachedInTheEnd) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    virtual_gpu::set_seed(seed);
    launch(streams_[0], set, value_, 1.0f);
    cudaEventRecord(event_, streams_[0]);
    while (cudaEventQuery(event_) == cudaErrorNotReady) {
    }
    EXPECT_EQ(cudaEventQuery(event_), cudaSuccess);
  }
}

TEST(VirtualGpuLedger, CountsWhatADeviceDoes) {
  const virtual_gpu::DeviceLedger before = virtual_gpu::ledger(2);
  EXPECT_FALSE(before.has_context);
  cudaSetDevice(2);
  void* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, 100), cudaSuccess);
  cudaMemsetAsync(data, 0, 100, nullptr);
  char host[100];
  cudaMemcpyAsync(host, data, 100, cudaMemcpyDefault, nullptr);
  EXPECT_EQ(host[99], 0);
  virtual_gpu::DeviceLedger now = virtual_gpu::ledger(2);
  EXPECT_TRUE(now.has_context);
  EXPECT_EQ(now.allocations, 1u);
  EXPECT_EQ(now.allocated_bytes, 100u);
  EXPECT_EQ(now.copied_bytes, 100u);
  cudaFree(data);
  now = virtual_gpu::ledger(2);
  EXPECT_EQ(now.allocations, 0u);
  EXPECT_EQ(now.peak_bytes, 100u);
  EXPECT_EQ(now.total_allocations, 1u);
  EXPECT_FALSE(virtual_gpu::ledger(3).has_context);
  cudaSetDevice(0);
}

}  // namespace
