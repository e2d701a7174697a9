// The communicator over NCCL, on ranks that are threads with a device of the virtual GPU each: the same bits
// as the communicator of a host, and every failure an error on every rank.
#include "nccl/nccl_communicator.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#if ANNULUS_TESTS_ON_VIRTUAL_GPU
#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "core/base/half.h"
#include "nccl/ordered_sum.h"
#include "tests/nccl/run_ranks.h"
#include "tests/virtual_gpu/nccl_faults.h"
#include "tests/virtual_gpu/virtual_gpu.h"
#endif

namespace annulus {
namespace {

using test::expect_error;

TEST(NcclCommunicator, NeedsACudaDeviceAndABuildWithNccl) {
  const auto host = make_identity_communicator();
  expect_error<ConfigError>([&] { make_nccl_communicator(*host, Device::cpu()); }, {"NCCL"});
  if (has_nccl()) {
    EXPECT_EQ(make_nccl_communicator(*host, Device::cuda(0))->world_size(), 1);
  } else {
    expect_error<ConfigError>([&] { make_nccl_communicator(*host, Device::cuda(0)); }, {"build has no NCCL"});
  }
}

#if ANNULUS_TESTS_ON_VIRTUAL_GPU

using namespace std::chrono_literals;
using test::run_threads;

constexpr int kWorldSizes[] = {1, 2, 3, 4};
// None, one, less than a pack each, odd, prime, and with the small workspace below several pieces and a bit.
constexpr std::size_t kCounts[] = {0, 1, 5, 17, 1021, 10007};
constexpr std::size_t kSmallWorkspace = 8192;

// A rank's end of both communicators, and its stream.
struct Ends {
  Communicator& host;
  Communicator& nccl;
  const Stream& stream;
  int rank() const { return nccl.rank(); }
  std::size_t ranks() const { return static_cast<std::size_t>(nccl.world_size()); }
};

// Runs `body` on every rank, and expects that nothing is left afterwards.
void run(int world_size, const std::function<void(const Ends&)>& body,
         std::chrono::milliseconds deadline = kDefaultDeadline, std::size_t workspace = kSmallWorkspace) {
  run_threads(world_size, [&](Communicator& host) {
    const Device device = Device::cuda(host.rank());
    const DeviceGuard guard(device);
    const Stream stream(device);
    const auto nccl = make_nccl_communicator(host, device, deadline, workspace);
    body({host, *nccl, stream});
  });
  EXPECT_EQ(virtual_gpu::leak_report(), "");
}

// Elements on a rank's device.
class Elements {
 public:
  Elements(const Ends& ends, const std::vector<std::byte>& values)
      : stream_(ends.stream), buffer_(ends.nccl.allocate(ends.stream.device(), values.size())) {
    copy_bytes(stream_, buffer_.data(), values.data(), values.size());
  }
  void* data() const { return buffer_.data(); }
  std::vector<std::byte> values() const {
    std::vector<std::byte> result(buffer_.bytes());
    if (result.empty()) return result;
    copy_bytes(stream_, result.data(), buffer_.data(), result.size());
    stream_.synchronize();
    return result;
  }

 private:
  StreamView stream_;
  Buffer buffer_;
};

// Numbers whose sums depend on the order, as elements of a dtype.
std::vector<std::byte> random_elements(int rank, std::size_t count, DType dtype) {
  std::mt19937 generator(static_cast<unsigned>(rank) + 1);
  std::normal_distribution<float> distribution(0.0f, 1000.0f);
  std::vector<std::byte> bytes(count * size_of(dtype));
  const auto put = [&](std::size_t i, auto value) {
    std::memcpy(&bytes[i * sizeof value], &value, sizeof value);
  };
  for (std::size_t i = 0; i < count; ++i) {
    const float number = distribution(generator);
    switch (dtype) {
      case DType::f32:
        put(i, number);
        break;
      case DType::f64:
        put(i, static_cast<double>(number) / 3);
        break;
      case DType::bf16:
        put(i, to_bfloat16(number));
        break;
      case DType::f16:
        put(i, to_float16(number));
        break;
      case DType::i32:
        put(i, static_cast<std::int32_t>(generator()));
        break;
      case DType::i64:
        put(i, static_cast<std::int64_t>(generator()) << 20);
        break;
      case DType::u8:
        put(i, static_cast<std::uint8_t>(generator()));
        break;
    }
  }
  return bytes;
}

// Sums on the device and on the host; true if the bits are equal.
bool sums_like_the_host(const Ends& ends, std::size_t count, DType dtype) {
  std::vector<std::byte> on_host = random_elements(ends.rank(), count, dtype);
  const Elements on_device(ends, on_host);
  ends.nccl.all_reduce_sum(on_device.data(), count, dtype, ends.stream);
  ends.host.all_reduce_sum(on_host.data(), count, dtype, StreamView());
  return on_device.values() == on_host;
}

TEST(NcclCommunicator, AllReduceHasTheBitsOfTheHostUnderEverySchedule) {
  for (const int world_size : kWorldSizes) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      virtual_gpu::set_seed(seed);
      run(world_size, [&](const Ends& ends) {
        for (const std::size_t count : kCounts)
          EXPECT_TRUE(sums_like_the_host(ends, count, DType::f32))
              << count << " elements over " << world_size << " ranks, seed " << seed;
      });
    }
  }
}

TEST(NcclCommunicator, AllReduceKnowsEveryDType) {
  for (const int world_size : {2, 3, 4}) {
    virtual_gpu::set_seed(static_cast<std::uint64_t>(world_size));
    run(world_size, [](const Ends& ends) {
      for (const DType dtype : {DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8})
        for (const std::size_t count : {std::size_t{1}, std::size_t{1021}, std::size_t{5003}})
          EXPECT_TRUE(sums_like_the_host(ends, count, dtype)) << count << " " << name_of(dtype);
    });
  }
}

TEST(NcclCommunicator, BroadcastSendsTheRootsElements) {
  for (const int world_size : kWorldSizes) {
    run(world_size, [](const Ends& ends) {
      for (const std::size_t count : kCounts) {
        const int root = static_cast<int>(count % ends.ranks());
        const Elements elements(ends, random_elements(ends.rank(), count, DType::i32));
        ends.nccl.broadcast(elements.data(), count, DType::i32, root, ends.stream);
        EXPECT_EQ(elements.values(), random_elements(root, count, DType::i32));
      }
      expect_error<CommunicationError>([&] { ends.nccl.broadcast(nullptr, 0, DType::f32, 7, ends.stream); },
                                       {"rank 7"});
    });
  }
}

TEST(NcclCommunicator, AllGatherOrdersByRank) {
  for (const int world_size : kWorldSizes) {
    run(world_size, [](const Ends& ends) {
      for (const std::size_t count : kCounts) {
        const Elements send(ends, random_elements(ends.rank(), count, DType::f64));
        const Elements receive(ends, std::vector<std::byte>(ends.ranks() * count * sizeof(double)));
        ends.nccl.all_gather(send.data(), receive.data(), count, DType::f64, ends.stream);
        std::vector<std::byte> expected;
        for (std::size_t rank = 0; rank < ends.ranks(); ++rank) {
          const auto part = random_elements(static_cast<int>(rank), count, DType::f64);
          expected.insert(expected.end(), part.begin(), part.end());
        }
        EXPECT_EQ(receive.values(), expected);
      }
    });
  }
}

TEST(NcclCommunicator, BarrierWaitsForEveryRank) {
  std::atomic<int> arrived{0};
  run(3, [&](const Ends& ends) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      ends.nccl.barrier();
      EXPECT_GE(arrived.load(), 3 * round);
      ends.nccl.barrier();
    }
  });
}

// The next collective may come on another stream, and before the last one is done: they share the workspace.
// Nothing but an event orders the sum of the last one's few elements and the arrival of the next one's.
void sum_on_two_streams(const Ends& ends, std::size_t count) {
  const Stream second(ends.stream.device());
  std::vector<std::byte> on_host_a = random_elements(ends.rank(), count, DType::f32);
  std::vector<std::byte> on_host_b = random_elements(ends.rank() + 3, count, DType::f32);
  const Elements a(ends, on_host_a);
  const Elements b(ends, on_host_b);
  ends.stream.synchronize();
  for (int i = 0; i < 3; ++i) {
    ends.nccl.all_reduce_sum(a.data(), count, DType::f32, ends.stream);
    ends.nccl.all_reduce_sum(b.data(), count, DType::f32, second);
    ends.host.all_reduce_sum(on_host_a.data(), count, DType::f32, StreamView());
    ends.host.all_reduce_sum(on_host_b.data(), count, DType::f32, StreamView());
  }
  ends.nccl.wait(second);
  EXPECT_EQ(a.values(), on_host_a) << count;
  EXPECT_EQ(b.values(), on_host_b) << count;
}

TEST(NcclCommunicator, StreamsTakeTurns) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    virtual_gpu::set_seed(seed);
    run(3, [](const Ends& ends) {
      sum_on_two_streams(ends, 5);
      sum_on_two_streams(ends, 500);
    });
  }
}

TEST(NcclCommunicator, WaitIsTheEndOfTheWork) {
  virtual_gpu::set_seed(3);  // lazy: nothing runs before somebody waits
  run(2, [](const Ends& ends) {
    const Buffer pinned = Buffer::pinned(ends.stream.device(), 8);
    const Elements elements(ends, random_elements(0, 2, DType::i32));
    ends.nccl.all_reduce_sum(elements.data(), 2, DType::i32, ends.stream);
    copy_bytes(ends.stream, pinned.data(), elements.data(), 8);
    ends.nccl.wait(ends.stream);
    std::int32_t expected = 0;
    std::memcpy(&expected, random_elements(0, 2, DType::i32).data(), sizeof expected);
    EXPECT_EQ(static_cast<std::uint32_t>(static_cast<std::int32_t*>(pinned.data())[0]),
              2 * static_cast<std::uint32_t>(expected));
  });
}

TEST(NcclCommunicator, SteadyStateAllocatesNoDeviceMemoryAndTheWorkspaceKeepsToItsLimit) {
  run(4, [](const Ends& ends) {
    const Elements elements(ends, random_elements(ends.rank(), 20000, DType::f32));
    const auto ledger = [&] { return virtual_gpu::ledger(ends.rank()); };
    const std::size_t before = ledger().allocated_bytes;
    ends.nccl.all_reduce_sum(elements.data(), 20000, DType::f32, ends.stream);
    EXPECT_LE(ledger().allocated_bytes - before, kSmallWorkspace);
    const std::size_t allocations = ledger().total_allocations;
    for (const std::size_t count : {20000, 7, 5000, 19999}) {
      ends.nccl.all_reduce_sum(elements.data(), count, DType::f32, ends.stream);
      ends.nccl.broadcast(elements.data(), count, DType::f32, 1, ends.stream);
      ends.nccl.barrier();
    }
    EXPECT_EQ(ledger().total_allocations, allocations);
  });
}

TEST(NcclCommunicator, AStreamOfAnotherDeviceIsRefused) {
  run(2, [](const Ends& ends) {
    expect_error<DeviceError>([&] { ends.nccl.all_reduce_sum(nullptr, 1, DType::f32, StreamView()); },
                              {"stream of cpu", "communicates on cuda:"});
  });
}

// What a rank of a failing group may see; all ranks see something, and soon.
void expect_failure(const Ends& ends, const std::function<void()>& call,
                    std::initializer_list<std::string_view> parts) {
  const auto start = std::chrono::steady_clock::now();
  expect_error<CommunicationError>(call, parts);
  expect_error<CommunicationError>([&] { ends.nccl.barrier(); }, parts);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
  ends.stream.synchronize();  // nothing pends any more
}

class NcclCommunicatorFaults : public ::testing::Test {
 protected:
  NcclCommunicatorFaults() { virtual_gpu::set_seed(1); }
  ~NcclCommunicatorFaults() override { virtual_gpu::heal_nccl_ranks(); }

  static void reduce_and_wait(const Ends& ends) {
    const Elements elements(ends, random_elements(ends.rank(), 100, DType::f32));
    for (int i = 0; i < 5; ++i) {
      ends.nccl.all_reduce_sum(elements.data(), 100, DType::f32, ends.stream);
      ends.nccl.wait(ends.stream);
    }
  }
};

TEST_F(NcclCommunicatorFaults, ARankThatDies) {
  virtual_gpu::kill_nccl_rank(1, 4);
  run(3, [](const Ends& ends) {
    expect_failure(ends, [&] { reduce_and_wait(ends); },
                   {"rank", "cuda:", "all-reduce of 100 f32", "NCCL says"});
  });
}

TEST_F(NcclCommunicatorFaults, ARankThatHangsInNccl) {
  virtual_gpu::hang_nccl_rank(2, 3);
  run(
      3,
      [](const Ends& ends) {
        expect_failure(ends, [&] { reduce_and_wait(ends); },
                       {"rank", "cuda:", "all-reduce of 100 f32", "waited", "hangs"});
      },
      300ms);
}

TEST_F(NcclCommunicatorFaults, AnAsynchronousError) {
  virtual_gpu::fail_nccl_rank(0, 5);
  run(3, [](const Ends& ends) {
    expect_failure(ends, [&] { reduce_and_wait(ends); },
                   {"rank 0", "cuda:0", "all-reduce of 100 f32", "unhandled system error", "ncclSend"});
  });
}

TEST_F(NcclCommunicatorFaults, ARankThatDoesNotCall) {
  std::atomic<int> failed{0};
  run(
      3,
      [&](const Ends& ends) {
        if (ends.rank() == 1) {
          while (failed < 2) std::this_thread::sleep_for(1ms);
          return expect_failure(ends, [&] { reduce_and_wait(ends); }, {"waited"});
        }
        expect_failure(ends, [&] { reduce_and_wait(ends); }, {"all-reduce of 100 f32", "waited"});
        ++failed;
      },
      300ms);
}

TEST_F(NcclCommunicatorFaults, ARankThatThrows) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    virtual_gpu::set_seed(seed);
    expect_error<DataError>(
        [&] {
          run(3, [](const Ends& ends) {
            if (ends.rank() != 0)
              return expect_failure(ends, [&] { reduce_and_wait(ends); }, {"rank 0 failed: no such file"});
            const Elements elements(ends, random_elements(0, 100, DType::f32));
            ends.nccl.all_reduce_sum(elements.data(), 100, DType::f32, ends.stream);
            throw DataError("no such file");
          });
        },
        {"no such file"});
  }
  EXPECT_EQ(virtual_gpu::leak_report(), "");
}

TEST_F(NcclCommunicatorFaults, AnotherThreadAborts) {
  run(2, [](const Ends& ends) {
    ends.host.barrier();
    if (ends.rank() == 0) {
      std::thread helper([&] { ends.nccl.abort("the disk is full"); });
      helper.join();
    }
    expect_failure(ends, [&] { reduce_and_wait(ends); }, {"rank 0 failed: the disk is full"});
  });
}

TEST_F(NcclCommunicatorFaults, ADeviceThatFails) {
  virtual_gpu::fail_launch(1, 2);
  std::atomic<int> errors{0};
  run_threads(2, [&](Communicator& host) {
    const Device device = Device::cuda(host.rank());
    const DeviceGuard guard(device);
    const Stream stream(device);
    const auto nccl = make_nccl_communicator(host, device);
    try {
      reduce_and_wait({host, *nccl, stream});
    } catch (const Error& error) {
      nccl->abort(error.what());
      ++errors;
    }
  });
  virtual_gpu::revive(1);
  EXPECT_EQ(errors, 2);
  EXPECT_EQ(virtual_gpu::leak_report(), "");
}

TEST_F(NcclCommunicatorFaults, ARankThatNeverJoins) {
  run_threads(2, [](Communicator& host) {
    if (host.rank() == 1) {
      std::byte id[128];  // as large as NCCL's
      return host.broadcast(id, sizeof id, DType::u8, 0, StreamView());
    }
    expect_error<CommunicationError>([&] { make_nccl_communicator(host, Device::cuda(0), 200ms); },
                                     {"making the communicator on cuda:0", "waited"});
  });
  EXPECT_EQ(virtual_gpu::leak_report(), "");
}

TEST_F(NcclCommunicatorFaults, TwoRanksOfOneDevice) {
  run_threads(2, [](Communicator& host) {
    expect_error<CommunicationError>([&] { make_nccl_communicator(host, Device::cuda(1)); },
                                     {"making the communicator", "invalid usage", "duplicate GPU"});
  });
  EXPECT_EQ(virtual_gpu::leak_report(), "");
}

using NcclCommunicatorFaultsDeathTest = NcclCommunicatorFaults;

TEST_F(NcclCommunicatorFaultsDeathTest, RanksThatDifferInCount) {
  const auto differ = [](std::size_t count, std::size_t count_of_rank_1) {
    run(3, [&](const Ends& ends) {
      const std::size_t own = ends.rank() == 1 ? count_of_rank_1 : count;
      const Elements elements(ends, random_elements(0, own, DType::f32));
      ends.nccl.all_reduce_sum(elements.data(), own, DType::f32, ends.stream);
      ends.nccl.wait(ends.stream);
    });
  };
  EXPECT_DEATH(differ(120, 60), "the ranks disagree about message .* differ in count");
  // The slices have the same size, but rank 1 has a rest that nobody takes.
  EXPECT_DEATH(differ(60, 70), "NCCL deadlock: .*rank 1 .cuda:1. in ncclSend of 10 ncclFloat32");
}

#endif

}  // namespace
}  // namespace annulus
