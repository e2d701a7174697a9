// NCCL among ranks that are processes and share one GPU: for machines that have a single one. It says nothing
// of speed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "nccl/nccl_communicator.h"
#include "tests/nccl/run_ranks.h"
#include "tests/support/random_values.h"

namespace annulus {
namespace {

// CUDA does not survive a fork, so this process does not ask for devices itself.
bool some_process_has_a_device() {
  return test::wait_for(test::start_process(
             [] { require<DeviceError>(cuda_device_count() > 0, "no CUDA device"); })) == 0;
}

// NCCL refuses two ranks on one device of one host, so that each says it is on a host of its own; they then
// talk over the loopback network. NCCL 2.30 and later may be asked instead.
void pretend_to_be_a_host(int rank) {
  const std::string id = "annulus-" + std::to_string(rank);
  setenv("NCCL_HOSTID", id.c_str(), 1);
  setenv("NCCL_NET", "Socket", 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  setenv("NCCL_NVLS_ENABLE", "0", 1);
}

TEST(NcclOneGpu, RanksThatShareADeviceSumAsTheirHostDoes) {
  if (ANNULUS_TESTS_ON_VIRTUAL_GPU) GTEST_SKIP() << "the virtual GPU is one of each process";
  if (!has_nccl()) GTEST_SKIP() << "this build has no NCCL";
  if (!some_process_has_a_device()) GTEST_SKIP() << "no CUDA device";
  for (const int world_size : {2, 3})
    test::run_processes(world_size, [](Communicator& host) {
      pretend_to_be_a_host(host.rank());
      const Device device = Device::cuda(0);
      const DeviceGuard guard(device);
      const auto nccl = make_nccl_communicator(host, device);
      const Stream stream(device);
      for (const std::size_t count : {1, 10007, 3000000}) {
        auto expected = test::uniform(count, -1, 1, static_cast<std::uint64_t>(host.rank()));
        const Buffer sum = nccl->allocate(device, count * sizeof(float));
        copy_bytes(stream, sum.data(), expected.data(), sum.bytes());
        nccl->all_reduce_sum(sum.data(), count, DType::f32, stream);
        nccl->wait(stream);
        std::vector<float> found(count);
        copy_bytes(stream, found.data(), sum.data(), sum.bytes());
        stream.synchronize();
        host.all_reduce_sum(expected.data(), count, DType::f32, StreamView());
        EXPECT_EQ(found, expected) << count << " elements";
      }
    });
}

}  // namespace
}  // namespace annulus
