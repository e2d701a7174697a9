// Streams, events, buffers and device guards of core/base on virtual devices.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/error.h"
#include "core/base/stream.h"
#include "tests/support/expect_error.h"
#include "tests/virtual_gpu/virtual_gpu.h"

namespace annulus {
namespace {

constexpr std::uint64_t kSeeds = 20;
constexpr std::size_t kCount = 100;

const Device kDevice = Device::cuda(1);

// Zeros and ones in device memory, and page-locked memory that they are copied to.
class VirtualGpuBase : public ::testing::Test {
 protected:
  static std::vector<float> ones() { return std::vector<float>(kCount, 1.0f); }
  void fill_with_ones() { copy_bytes(first_, data_.data(), ones().data(), data_.bytes()); }
  float* on_host() const { return static_cast<float*>(pinned_.data()); }

  Stream first_{kDevice}, second_{kDevice};
  Event event_{kDevice};
  Buffer data_{kDevice, kCount * sizeof(float)};
  Buffer pinned_ = Buffer::pinned(kDevice, kCount * sizeof(float));
};

TEST_F(VirtualGpuBase, AnEventOrdersWorkOfTwoStreams) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    virtual_gpu::set_seed(seed);
    fill_with_ones();
    zero_bytes(first_, data_.data(), data_.bytes());
    event_.record(first_);
    event_.wait(second_);
    copy_bytes(second_, on_host(), data_.data(), data_.bytes());
    second_.synchronize();
    EXPECT_EQ(on_host()[0], 0) << "seed " << seed;
    EXPECT_EQ(on_host()[kCount - 1], 0);
    first_.synchronize();
  }
}

TEST_F(VirtualGpuBase, AnEventIsReachedOnceItsWorkIsDone) {
  std::set<bool> at_once;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    virtual_gpu::set_seed(seed);
    *on_host() = 7;
    zero_bytes(first_, data_.data(), data_.bytes());
    copy_bytes(first_, on_host(), data_.data(), data_.bytes());
    event_.record(first_);
    at_once.insert(event_.query());
    while (!event_.query()) {
    }
    EXPECT_EQ(*on_host(), 0) << "seed " << seed;
  }
  EXPECT_EQ(at_once, (std::set<bool>{false, true}));
}

TEST_F(VirtualGpuBase, SynchronizeWaitsForTheStream) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    virtual_gpu::set_seed(seed);
    *on_host() = 7;
    fill_with_ones();
    copy_bytes(first_, on_host(), data_.data(), data_.bytes());
    first_.synchronize();
    EXPECT_EQ(*on_host(), 1) << "seed " << seed;
  }
}

TEST_F(VirtualGpuBase, TimedEventsKnowHowLongItTook) {
  Event begin(kDevice, Event::Timing::on), end(kDevice, Event::Timing::on);
  begin.record(first_);
  zero_bytes(first_, data_.data(), data_.bytes());
  end.record(first_);
  first_.synchronize();
  EXPECT_GE(end.seconds_since(begin), 0);
  EXPECT_LE(begin.seconds_since(end), 0);
}

TEST_F(VirtualGpuBase, BuffersAreOnTheirDeviceAndFreed) {
  const virtual_gpu::DeviceLedger before = virtual_gpu::ledger(1);
  {
    const Buffer buffer(kDevice, 1000);
    const Buffer pinned = Buffer::pinned(kDevice, 1000);
    EXPECT_EQ(virtual_gpu::ledger(1).allocated_bytes, before.allocated_bytes + 1000);
    Buffer moved;
    moved = Buffer(kDevice, 10);
  }
  EXPECT_EQ(virtual_gpu::ledger(1).allocations, before.allocations);
}

TEST_F(VirtualGpuBase, AFullDeviceIsNamed) {
  test::expect_error<DeviceError>([] { Buffer(kDevice, std::size_t{1} << 40); },
                                  {"cuda:1: cannot allocate 1099511627776 bytes: out of memory"});
}

int current_device() {
  int device = -1;
  cudaGetDevice(&device);
  return device;
}

TEST_F(VirtualGpuBase, AGuardRestoresADeviceThatIsInUse) {
  const DeviceGuard outer(Device::cuda(1));
  {
    const DeviceGuard inner(Device::cuda(2));
    EXPECT_EQ(current_device(), 2);
    const DeviceGuard same(Device::cuda(2));
    const DeviceGuard cpu(Device::cpu());
  }
  EXPECT_EQ(current_device(), 1);
  test::expect_error<DeviceError>([] { DeviceGuard(Device::cuda(4)); },
                                  {"cudaSetDevice", "invalid device ordinal"});
}

// Of its own process: no other test may have used device 0.
TEST(VirtualGpuBaseDeathTest, AGuardMakesNoContextOnADeviceThatIsNot) {
  EXPECT_EXIT(
      {
        { const DeviceGuard guard(Device::cuda(3)); }
        std::exit(virtual_gpu::ledger(0).has_context || !virtual_gpu::ledger(3).has_context ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace annulus
