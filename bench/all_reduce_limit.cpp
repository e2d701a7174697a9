#include "bench/all_reduce_limit.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "bench/rank_processes.h"
#include "core/base/buffer.h"

namespace annulus::bench {
namespace {

/// Where two threads wait for each other.
class Meeting {
 public:
  void wait() {
    const unsigned both = arrived_.fetch_add(1) / 2 * 2 + 2;
    for (int spins = 0; arrived_.load() < both; ++spins)
      if (spins > 10000) std::this_thread::yield();  // the other thread may not have a core of its own
  }

 private:
  std::atomic<unsigned> arrived_ = 0;
};

}  // namespace

AllReduceTiming measure_all_reduce_limit(std::size_t count, double seconds) {
  const std::array<Buffer, 2> buffers = {Buffer(Device::cpu(), count * sizeof(float)),
                                         Buffer(Device::cpu(), count * sizeof(float))};
  const auto buffer = [&buffers](int rank) { return static_cast<float*>(buffers[rank].data()); };
  Meeting meeting;
  std::array<const std::int64_t*, 2> sent{};
  std::array<AllReduceTiming, 2> timings;

  const auto run_thread = [&](int rank) {
    pin_to_core(rank);
    const AllReduceRank access{
        .rank = rank,
        .ranks = 2,
        .barrier = [&] { meeting.wait(); },
        .all_reduce =
            [&](float*, std::size_t) {
              float* const __restrict first = buffer(0), * const __restrict second = buffer(1);
              const std::size_t begin = rank == 0 ? 0 : count / 2, end = rank == 0 ? count / 2 : count;
              for (std::size_t i = begin; i < end; ++i) first[i] = second[i] = first[i] + second[i];
              meeting.wait();
            },
        .all_gather =
            [&](const std::int64_t* send, std::int64_t* receive, std::size_t records) {
              sent[rank] = send;
              meeting.wait();
              for (const std::int64_t* source : sent) receive = std::copy_n(source, records, receive);
              meeting.wait();
            }};
    timings[rank] = time_all_reduce(access, buffer(rank), count, seconds);
  };
  std::thread other(run_thread, 1);
  std::thread(run_thread, 0).join();  // threads of their own, so that the caller's stays where it may go
  other.join();
  return timings[0];
}

}  // namespace annulus::bench
