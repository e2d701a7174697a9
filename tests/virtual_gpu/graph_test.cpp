// CUDA graphs: what is captured runs again at every launch, in any order that its edges allow.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "tests/virtual_gpu/virtual_gpu.h"

namespace {

constexpr std::uint64_t kSeeds = 30;

__global__ void set(float* to, float value) { *to = value; }
__global__ void add(float* to, float value) { *to += value; }

class VirtualGpuGraph : public ::testing::Test {
 protected:
  VirtualGpuGraph() {
    cudaSetDevice(0);
    for (cudaStream_t& stream : streams_) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    for (cudaEvent_t& event : events_) cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaMalloc(reinterpret_cast<void**>(&value_), sizeof(float));
    cudaHostAlloc(reinterpret_cast<void**>(&pinned_), sizeof(float), cudaHostAllocDefault);
    launch(streams_[0], set, value_, 0.0f);
    cudaStreamSynchronize(streams_[0]);
  }
  ~VirtualGpuGraph() override {
    cudaFree(value_);
    cudaFreeHost(pinned_);
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }

  template <class... Parameters, class... Arguments>
  static void launch(cudaStream_t stream, void (*kernel)(Parameters...), Arguments... arguments) {
    const cudaLaunchConfig_t config{1, 1, 0, stream};
    cudaLaunchKernelEx(&config, kernel, arguments...);
  }

  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
    EXPECT_EQ(cudaStreamBeginCapture(streams_[0], mode), cudaSuccess);
  }

  // Ends the capture of the first stream.
  cudaGraphExec_t end() {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
    cudaGraphExec_t exec = nullptr;
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return exec;
  }

  // The second stream goes on after what the first one has been given.
  void fork() {
    cudaEventRecord(events_[0], streams_[0]);
    cudaStreamWaitEvent(streams_[1], events_[0], 0);
  }

  void join() {
    cudaEventRecord(events_[1], streams_[1]);
    cudaStreamWaitEvent(streams_[0], events_[1], 0);
  }

  float value() {
    float result = 0;
    cudaMemcpyAsync(&result, value_, sizeof(float), cudaMemcpyDefault, streams_[0]);
    return result;
  }

  // What may be in value_ after a launch.
  std::set<float> results_of(cudaGraphExec_t exec) {
    std::set<float> results;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      virtual_gpu::set_seed(seed);
      launch(streams_[0], set, value_, 100.0f);
      cudaGraphLaunch(exec, streams_[0]);
      results.insert(value());
    }
    return results;
  }

  cudaStream_t streams_[2] = {};
  cudaEvent_t events_[2] = {};
  float* value_ = nullptr;
  float* pinned_ = nullptr;
};

using VirtualGpuGraphDeathTest = VirtualGpuGraph;

TEST_F(VirtualGpuGraph, CapturesWithoutRunningAndRunsAtEveryLaunch) {
  begin();
  cudaStreamCaptureStatus status{};
  cudaStreamIsCapturing(streams_[0], &status);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  cudaStreamIsCapturing(streams_[1], &status);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  launch(streams_[0], add, value_, 2.0f);
  const cudaGraphExec_t exec = end();
  cudaStreamIsCapturing(streams_[0], &status);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  EXPECT_EQ(value(), 0);
  const virtual_gpu::DeviceLedger before = virtual_gpu::ledger(0);
  for (int i = 0; i < 3; ++i) cudaGraphLaunch(exec, streams_[i % 2]);
  cudaGraphExecDestroy(exec);  // queued launches still run
  cudaStreamSynchronize(streams_[1]);
  EXPECT_EQ(value(), 6);
  EXPECT_EQ(virtual_gpu::ledger(0).graph_launches - before.graph_launches, 3u);
  EXPECT_EQ(virtual_gpu::ledger(0).launches - before.launches, 3u);
}

TEST_F(VirtualGpuGraph, CopiesReadWhatMemoryHoldsAtTheLaunch) {
  float* other = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&other), sizeof(float));
  begin(cudaStreamCaptureModeThreadLocal);
  cudaMemcpyAsync(value_, pinned_, sizeof(float), cudaMemcpyDefault, streams_[0]);
  cudaMemcpyAsync(other, value_, sizeof(float), cudaMemcpyDefault, streams_[0]);
  cudaMemsetAsync(value_, 0, sizeof(float), streams_[0]);
  launch(streams_[0], add, other, 1.0f);
  cudaMemcpyAsync(pinned_, other, sizeof(float), cudaMemcpyDefault, streams_[0]);
  const cudaGraphExec_t exec = end();
  for (const float start : {3.0f, 8.0f}) {
    *pinned_ = start;
    cudaGraphLaunch(exec, streams_[0]);
    EXPECT_EQ(value(), 0);
    EXPECT_EQ(*pinned_, start + 1);
  }
  cudaGraphExecDestroy(exec);
  cudaFree(other);
}

TEST_F(VirtualGpuGraph, ForkAndJoinAreEdges) {
  begin();
  launch(streams_[0], set, value_, 1.0f);
  fork();
  launch(streams_[1], add, value_, 10.0f);
  join();
  launch(streams_[0], set, value_, 5.0f);
  const cudaGraphExec_t exec = end();
  EXPECT_EQ(results_of(exec), (std::set<float>{5}));
  cudaGraphExecDestroy(exec);
}

TEST_F(VirtualGpuGraph, AMissingEdgeShows) {
  begin();
  fork();
  launch(streams_[0], set, value_, 1.0f);
  launch(streams_[1], add, value_, 10.0f);
  join();
  const cudaGraphExec_t exec = end();
  EXPECT_EQ(results_of(exec), (std::set<float>{1, 11}));
  cudaGraphExecDestroy(exec);
}

TEST_F(VirtualGpuGraph, AnExternalEventHappensInEveryLaunch) {
  begin();
  launch(streams_[0], add, value_, 1.0f);
  cudaEventRecordWithFlags(events_[0], streams_[0], cudaEventRecordExternal);
  launch(streams_[0], add, value_, 10.0f);
  const cudaGraphExec_t exec = end();
  std::set<float> seen;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    virtual_gpu::set_seed(seed);
    launch(streams_[0], set, value_, 0.0f);
    cudaGraphLaunch(exec, streams_[0]);
    cudaStreamWaitEvent(streams_[1], events_[0], 0);
    cudaMemcpyAsync(pinned_, value_, sizeof(float), cudaMemcpyDefault, streams_[1]);
    cudaStreamSynchronize(streams_[1]);
    seen.insert(*pinned_);
    cudaStreamSynchronize(streams_[0]);
    EXPECT_EQ(cudaEventQuery(events_[0]), cudaSuccess);
  }
  EXPECT_EQ(seen, (std::set<float>{1, 11}));
  cudaGraphExecDestroy(exec);
}

TEST_F(VirtualGpuGraphDeathTest, CallsThatAreIllegalWhileCapturing) {
  float on_host = 0;
  void* data = nullptr;
  cudaEventRecord(events_[1], streams_[1]);
  begin(cudaStreamCaptureModeGlobal);
  launch(streams_[0], add, value_, 1.0f);
  fork();
  join();
  EXPECT_DEATH(cudaStreamSynchronize(streams_[0]), "cudaStreamSynchronize: the stream captures");
  EXPECT_DEATH(cudaStreamSynchronize(streams_[1]), "cudaStreamSynchronize: the stream captures");
  EXPECT_DEATH(cudaStreamDestroy(streams_[0]), "cudaStreamDestroy: the stream captures");
  EXPECT_DEATH(cudaEventSynchronize(events_[0]), "the event was last recorded by a stream that captured");
  EXPECT_DEATH(cudaEventQuery(events_[1]), "cudaEventQuery while a stream captures");
  EXPECT_DEATH(cudaMalloc(&data, 4), "cudaMalloc while a stream captures");
  EXPECT_DEATH(cudaFree(value_), "cudaFree while a stream captures");
  EXPECT_DEATH(cudaHostAlloc(&data, 4, 0), "cudaHostAlloc while a stream captures");
  EXPECT_DEATH(cudaFreeHost(pinned_), "cudaFreeHost while a stream captures");
  EXPECT_DEATH(std::thread([&] { cudaMalloc(&data, 4); }).join(), "cudaMalloc while a stream captures");
  EXPECT_DEATH(cudaMemcpyAsync(&on_host, value_, 4, cudaMemcpyDefault, streams_[0]),
               "pageable memory cannot be captured");
  EXPECT_DEATH(cudaMemcpyAsync(value_, &on_host, 4, cudaMemcpyDefault, streams_[0]),
               "pageable memory cannot be captured");
  EXPECT_DEATH(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeGlobal), "captures already");
  cudaGraphExecDestroy(end());
  EXPECT_DEATH(cudaStreamWaitEvent(streams_[1], events_[0], 0), "a capture that has ended");
  EXPECT_DEATH(cudaEventQuery(events_[0]), "last recorded by a stream that captured");
  EXPECT_DEATH(cudaEventRecordWithFlags(events_[0], streams_[0], cudaEventRecordExternal),
               "is for streams that capture");
}

TEST_F(VirtualGpuGraphDeathTest, OtherThreadsMayAllocateUnderThreadLocalCaptures) {
  begin(cudaStreamCaptureModeThreadLocal);
  void* data = nullptr;
  std::thread([&] { cudaMalloc(&data, 4); }).join();
  EXPECT_DEATH(cudaMalloc(&data, 4), "cudaMalloc while a stream captures");
  EXPECT_DEATH(std::thread([&] { end(); }).join(), "another thread began the capture");
  cudaGraphExecDestroy(end());
  cudaFree(data);
}

TEST_F(VirtualGpuGraphDeathTest, StreamsThatDoNotFitTogether) {
  begin();
  fork();
  launch(streams_[1], add, value_, 1.0f);
  EXPECT_DEATH(end(), "work of another stream was not joined");
  cudaGraph_t graph = nullptr;
  EXPECT_DEATH(cudaStreamEndCapture(streams_[1], &graph), "no capture was begun on this stream");
  join();
  cudaEvent_t outside = nullptr;
  cudaEventCreateWithFlags(&outside, cudaEventDisableTiming);
  EXPECT_DEATH(cudaStreamWaitEvent(streams_[0], outside, 0), "recorded outside of its capture");
  cudaEventDestroy(outside);
  cudaGraphExecDestroy(end());
  EXPECT_DEATH(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal),
               "the default stream cannot capture");
}

TEST_F(VirtualGpuGraphDeathTest, GraphsThatCannotBeLaunched) {
  begin();
  launch(streams_[0], add, value_, 1.0f);
  cudaEventRecordWithFlags(events_[0], streams_[0], cudaEventRecordExternal);
  const cudaGraphExec_t exec = end();
  cudaSetDevice(1);
  cudaStream_t elsewhere = nullptr;
  cudaStreamCreateWithFlags(&elsewhere, cudaStreamNonBlocking);
  EXPECT_DEATH(cudaGraphLaunch(exec, elsewhere), "captured on cuda:0, the stream is of cuda:1");
  cudaStreamDestroy(elsewhere);
  cudaSetDevice(0);
  EXPECT_DEATH(
      {
        cudaFree(value_);
        cudaGraphLaunch(exec, streams_[0]);
        cudaStreamSynchronize(streams_[0]);
      },
      "use after free: read of 4 bytes");
  EXPECT_DEATH(
      {
        cudaEventDestroy(events_[0]);
        cudaGraphLaunch(exec, streams_[0]);
      },
      "an event that the graph records was destroyed");
  cudaGraphExecDestroy(exec);
  EXPECT_DEATH(cudaGraphLaunch(exec, streams_[0]), "the executable graph was destroyed or never created");
}

TEST(VirtualGpuGraphExitDeathTest, Leaks) {
  EXPECT_EXIT(
      {
        cudaSetDevice(0);
        cudaStream_t stream = nullptr;
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
        cudaStreamEndCapture(stream, &graph);
        cudaGraphInstantiate(&exec, graph, 0);
        cudaGraphLaunch(exec, stream);  // of nothing
        cudaStreamDestroy(stream);
        std::exit(0);
      },
      ::testing::ExitedWithCode(1), "not released at exit:\n *1 graphs\n *1 executable graphs");
}

}  // namespace
