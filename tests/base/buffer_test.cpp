#include "core/base/buffer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "core/base/error.h"
#include "tests/support/expect_error.h"

// AddressSanitizer should let allocations fail rather than stop the program; nobody calls this without it.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

namespace annulus {
namespace {

static_assert(!std::is_copy_constructible_v<Buffer> && !std::is_copy_assignable_v<Buffer>);
static_assert(std::is_nothrow_move_constructible_v<Buffer> && std::is_nothrow_move_assignable_v<Buffer>);

TEST(Buffer, OwnsAlignedMemory) {
  for (const std::size_t bytes : {1u, 255u, 256u, 100000u}) {
    const Buffer buffer(Device::cpu(), bytes);
    ASSERT_NE(buffer.data(), nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 256, 0u);
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_TRUE(buffer.device().is_cpu());
    std::memset(buffer.data(), 1, bytes);
  }
}

TEST(Buffer, MayBeEmpty) {
  EXPECT_EQ(Buffer().data(), nullptr);
  EXPECT_EQ(Buffer(Device::cpu(), 0).data(), nullptr);
  EXPECT_EQ(Buffer::pinned(Device::cpu(), 0).data(), nullptr);
}

TEST(Buffer, PinnedForTheCpuIsOrdinaryMemory) {
  const Buffer buffer = Buffer::pinned(Device::cpu(), 100);
  EXPECT_NE(buffer.data(), nullptr);
  EXPECT_EQ(buffer.bytes(), 100u);
  EXPECT_TRUE(buffer.device().is_cpu());
}

TEST(Buffer, MovesItsMemory) {
  Buffer first(Device::cpu(), 100);
  void* const data = first.data();
  Buffer second(std::move(first));
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.bytes(), 100u);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): moving leaves an empty buffer
  EXPECT_EQ(first.bytes(), 0u);
  Buffer third;
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
}

TEST(Buffer, ReleasesAdoptedMemoryOnce) {
  char memory[8];
  int released = 0;
  {
    Buffer first(Device::cpu(), memory, sizeof memory, [&] { ++released; });
    EXPECT_EQ(first.data(), memory);
    Buffer second(std::move(first));
    Buffer third;
    third = std::move(second);
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
}

TEST(Buffer, SaysWhatItCouldNotAllocate) {
  const std::size_t bytes = std::numeric_limits<std::size_t>::max() / 4;
  test::expect_error<DeviceError>([&] { const Buffer buffer(Device::cpu(), bytes); },
                                  {"cpu", std::to_string(bytes), "smaller"});
  EXPECT_THROW(Buffer(Device::cuda(cuda_device_count()), 1), DeviceError);
}

TEST(CopyAndZero, WorkOnTheCpuAtOnce) {
  const std::uint8_t source[4] = {1, 2, 3, 4};
  std::uint8_t destination[4] = {};
  copy_bytes(StreamView(), destination, source, 4);
  EXPECT_EQ(std::memcmp(source, destination, 4), 0);
  zero_bytes(StreamView(), destination, 2);
  EXPECT_EQ(destination[1], 0);
  EXPECT_EQ(destination[2], 3);
  copy_bytes(StreamView(), nullptr, nullptr, 0);
  zero_bytes(StreamView(), nullptr, 0);
}

}  // namespace
}  // namespace annulus
