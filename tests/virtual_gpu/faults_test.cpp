// Injected faults: what a program sees of a device that fails or hangs, and what the engine makes of it.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "tests/nn/test_data.h"
#include "tests/nn/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/virtual_gpu/virtual_gpu.h"

namespace annulus {
namespace {

__global__ void add(float* to, float value) { *to += value; }

class VirtualGpuFaults : public ::testing::Test {
 protected:
  VirtualGpuFaults() {
    cudaSetDevice(0);
    virtual_gpu::set_seed(1);
    for (cudaStream_t& stream : streams_) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
    cudaMalloc(reinterpret_cast<void**>(&value_), sizeof(float));
    cudaMemsetAsync(value_, 0, sizeof(float), streams_[0]);
    cudaStreamSynchronize(streams_[0]);
  }
  ~VirtualGpuFaults() override {
    virtual_gpu::revive(0);
    cudaFree(value_);
    cudaEventDestroy(event_);
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }

  cudaError_t launch(cudaStream_t stream) {
    const cudaLaunchConfig_t config{1, 1, 0, stream};
    return cudaLaunchKernelEx(&config, add, value_, 1.0f);
  }

  cudaStream_t streams_[2] = {};
  cudaEvent_t event_ = nullptr;
  float* value_ = nullptr;
};

using VirtualGpuFaultsDeathTest = VirtualGpuFaults;

TEST_F(VirtualGpuFaults, TheChosenAllocationFails) {
  virtual_gpu::fail_allocation(2);
  void* first = nullptr;
  void* second = nullptr;
  void* third = nullptr;
  EXPECT_EQ(cudaMalloc(&first, 8), cudaSuccess);
  EXPECT_EQ(cudaHostAlloc(&second, 8, cudaHostAllocDefault), cudaErrorMemoryAllocation);
  EXPECT_EQ(second, nullptr);
  EXPECT_EQ(cudaMalloc(&third, 8), cudaSuccess);
  cudaFree(first);
  cudaFree(third);
}

TEST_F(VirtualGpuFaults, AFailedLaunchSticks) {
  virtual_gpu::fail_launch(0, 2);
  void* other = nullptr;
  cudaMalloc(&other, 4);
  cudaEventRecord(event_, streams_[1]);
  EXPECT_EQ(launch(streams_[0]), cudaSuccess);
  EXPECT_EQ(launch(streams_[0]), cudaSuccess);
  EXPECT_EQ(launch(streams_[0]), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaErrorLaunchFailure);
  void* data = nullptr;
  float host = 0;
  EXPECT_EQ(cudaMalloc(&data, 4), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaFree(other), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaHostAlloc(&data, 4, cudaHostAllocDefault), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaMemsetAsync(value_, 0, 4, streams_[1]), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaMemcpyAsync(&host, value_, 4, cudaMemcpyDefault, streams_[1]), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaStreamSynchronize(streams_[1]), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaEventRecord(event_, streams_[1]), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaStreamWaitEvent(streams_[1], event_, 0), cudaErrorLaunchFailure);
  EXPECT_EQ(launch(streams_[1]), cudaErrorLaunchFailure);
  // Other devices go on.
  cudaSetDevice(1);
  EXPECT_EQ(cudaMalloc(&data, 4), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  cudaSetDevice(0);
  virtual_gpu::revive(0);
  cudaMemcpyAsync(&host, value_, 4, cudaMemcpyDefault, streams_[0]);
  EXPECT_EQ(host, 1) << "only what came before the failure ran";
}

TEST_F(VirtualGpuFaultsDeathTest, AHungStreamNeverGetsThere) {
  virtual_gpu::hang_launch(0, 1);
  launch(streams_[0]);
  cudaEventRecord(event_, streams_[0]);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
  launch(streams_[1]);
  EXPECT_EQ(cudaStreamSynchronize(streams_[1]), cudaSuccess) << "the other stream goes on";
  EXPECT_DEATH(cudaStreamSynchronize(streams_[0]), "cudaStreamSynchronize waits for a kernel that hangs");
  EXPECT_DEATH(cudaFree(value_), "cudaFree waits for a kernel that hangs");
  virtual_gpu::revive(0);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
}

// The engine: a model, its optimizer and one step of two micro-batches.
constexpr const char* kSpec = "conv2d(4,3,pad=1) batch_norm relu dropout(0.2) flatten linear(4)";
constexpr InputShape kInput{6, 6, 1};

void train_one_step() {
  const DeviceGuard guard(Device::cuda(0));
  test::TestImages images(kInput, 6, 4);
  test::Trainer trainer(kSpec, kInput, {}, {.momentum = 0.9f}, Device::cuda(0));
  trainer.step.run(images.cut(0, 6, 2, 0, 2), 0.1f, 0, 0);
}

TEST(VirtualGpuEngineFaults, EveryAllocationMayFail) {
  const std::string before = virtual_gpu::leak_report();
  std::size_t failures = 0;
  for (bool done = false; !done;) {
    virtual_gpu::fail_allocation(++failures);
    try {
      train_one_step();
      done = true;
    } catch (const DeviceError& error) {
      EXPECT_NE(std::string(error.what()).find("cuda:0: cannot allocate"), std::string::npos) << error.what();
    }
    EXPECT_EQ(virtual_gpu::leak_report(), before) << "allocation " << failures;
  }
  virtual_gpu::fail_allocation(0);
  EXPECT_GT(failures, 10u);
}

TEST(VirtualGpuEngineFaults, AnyLaunchMayFail) {
  const std::string before = virtual_gpu::leak_report();
  for (const std::size_t nth : {1, 2, 5, 11, 23}) {
    virtual_gpu::fail_launch(0, nth);
    test::expect_error<DeviceError>(train_one_step, {"unspecified launch failure (cudaErrorLaunchFailure)"});
    virtual_gpu::revive(0);
    EXPECT_EQ(virtual_gpu::leak_report(), before) << "launch " << nth;
  }
}

}  // namespace
}  // namespace annulus
