// Ranks for the tests of the virtual GPU's NCCL.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <chrono>
#include <vector>

#include "tests/virtual_gpu/nccl_faults.h"
#include "tests/virtual_gpu/virtual_gpu.h"

namespace virtual_gpu::test {

inline constexpr std::size_t kRoom = 64;  // elements of each rank's two arrays

// One rank with a stream and two arrays of floats: `in` holds rank + 1 + i / 8, `out` was never written.
struct Rank {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  float* in = nullptr;
  float* out = nullptr;

  void make(int rank) {
    cudaSetDevice(rank);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaMalloc(reinterpret_cast<void**>(&in), kRoom * sizeof(float));
    cudaMalloc(reinterpret_cast<void**>(&out), kRoom * sizeof(float));
    std::vector<float> values(kRoom);
    for (std::size_t i = 0; i < kRoom; ++i) values[i] = value(rank, i);
    cudaMemcpyAsync(in, values.data(), kRoom * sizeof(float), cudaMemcpyDefault, stream);
    cudaStreamSynchronize(stream);
  }
  void release() {
    cudaFree(in);
    cudaFree(out);
    cudaStreamDestroy(stream);
  }
  static float value(int rank, std::size_t i) {
    return static_cast<float>(rank) + 1 + static_cast<float>(i) / 8;
  }
};

// Ranks of one thread, which therefore makes all calls in groups.
class VirtualNccl : public ::testing::Test {
 protected:
  VirtualNccl() { virtual_gpu::set_seed(1); }
  ~VirtualNccl() override {
    for (Rank& rank : ranks) {
      if (rank.comm != nullptr) ncclCommAbort(rank.comm);
    }
    for (Rank& rank : ranks) rank.release();
    virtual_gpu::heal_nccl_ranks();
    virtual_gpu::set_nccl_patience(std::chrono::seconds(60));
    cudaSetDevice(0);
  }

  void start(int count, int blocking = 1) {
    ranks.resize(static_cast<std::size_t>(count));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    for (int rank = 0; rank < count; ++rank) of(rank).make(rank);
    ncclGroupStart();
    for (int rank = 0; rank < count; ++rank) {
      cudaSetDevice(rank);
      ncclCommInitRankConfig(&of(rank).comm, count, id, rank, &config);
    }
    EXPECT_EQ(ncclGroupEnd(), blocking ? ncclSuccess : ncclInProgress);
    if (!blocking) wait();
  }

  Rank& of(int rank) { return ranks[static_cast<std::size_t>(rank)]; }

  // Polls until no communicator is in progress.
  void wait() {
    for (Rank& rank : ranks) {
      ncclResult_t state = ncclInProgress;
      while (state == ncclInProgress) ASSERT_EQ(ncclCommGetAsyncError(rank.comm, &state), ncclSuccess);
      EXPECT_EQ(state, ncclSuccess);
    }
  }

  // Makes a call for every rank, in one group, on the rank's device.
  template <class Call>
  ncclResult_t together(Call call) {
    ncclGroupStart();
    for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
      cudaSetDevice(rank);
      call(rank, of(rank));
    }
    return ncclGroupEnd();
  }

  std::vector<float> read(int rank, const float* data, std::size_t count) {
    std::vector<float> host(count);
    cudaMemcpyAsync(host.data(), data, count * sizeof(float), cudaMemcpyDefault, of(rank).stream);
    return host;
  }

  void finish() {
    for (Rank& rank : ranks) EXPECT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
  }

  std::vector<Rank> ranks;
};

}  // namespace virtual_gpu::test
