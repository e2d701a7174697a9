#include "block.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <memory>
#include <numeric>
#include <vector>

#include "machine.h"
#include "report.h"

namespace virtual_gpu {
namespace {

namespace context = boost::context;

constexpr unsigned kWarpSize = 32;
constexpr std::size_t kStackBytes = 64 * 1024;
constexpr std::size_t kSharedBytes = 48 * 1024;  // what a launch may ask for without opting in to more

enum class State { ready, at_block_barrier, at_warp_barrier, exited };

// __syncwarp orders memory accesses; a shuffle does not.
enum class Ordering { none, memory };

struct Thread {
  uint3 index{};
  std::uint32_t number = 0;  // in the block, x fastest
  State state = State::ready;
  std::uint32_t warp_epoch = 0;
  unsigned mask = 0;  // of the warp barrier that it waits at
  Ordering ordering = Ordering::none;
  std::uint64_t bits = 0;                  // what it brings to the exchange there
  std::uint64_t received[kWarpSize] = {};  // what the lanes of the mask brought
  struct Worker* worker = nullptr;
};

// A fiber with its stack: it runs one thread to its end, then the next one that it is given.
struct Worker {
  char* stack = nullptr;
  context::fiber fiber;
  context::fiber scheduler;
  Thread* thread = nullptr;

  Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    fiber = {};  // unwinds it while it still has a stack
    munmap(stack, kStackBytes);
  }
};

// Stacks are mapped once and kept; boost must not free them.
struct KeptStack {
  char* base;
  context::stack_context allocate() const {
    context::stack_context result;
    result.size = kStackBytes;
    result.sp = base + kStackBytes;
    return result;
  }
  void deallocate(context::stack_context&) const {}
};

class BlockRunner;
thread_local BlockRunner* running_block = nullptr;
thread_local Thread* running_thread = nullptr;

// The shared memory of the running block: what lies beyond the bytes that the launch asked for is out of
// bounds, and every block finds it unwritten.
class SharedMemory {
 public:
  SharedMemory()
      : base_(static_cast<char*>(
            mmap(nullptr, kSharedBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))),
        shadow_(base_, kSharedBytes) {}
  ~SharedMemory() { munmap(base_, kSharedBytes); }

  void reset(std::size_t bytes) {
    std::memset(base_, 0xff, bytes);
    shadow_.set(base_, bytes, ByteState::unwritten);
    shadow_.set(base_ + bytes, kSharedBytes - bytes, ByteState::outside);
  }
  char* data() const { return base_; }
  Shadow& shadow() { return shadow_; }

 private:
  char* base_;
  Shadow shadow_;
};

// What launches use one after the other.
struct Pool {
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<Worker*> idle;
  SharedMemory shared;
  std::uint32_t block_serial = 0;
};

class BlockRunner {
 public:
  BlockRunner(const Launch& launch, DeviceMemory& memory, std::mt19937_64& random, Pool& pool)
      : launch_(launch),
        memory_(memory),
        random_(random),
        pool_(pool),
        threads_(std::size_t{launch.block.x} * launch.block.y * launch.block.z) {}

  void run(uint3 block, std::uint32_t number) {
    block_ = block;
    number_ = number;
    ++pool_.block_serial;
    epoch_ = 0;
    pool_.shared.reset(launch_.shared_bytes);
    ready_.clear();
    for (std::uint32_t i = 0; i < threads_.size(); ++i) {
      Thread& thread = threads_[i];
      thread.index = {i % launch_.block.x, i / launch_.block.x % launch_.block.y,
                      i / launch_.block.x / launch_.block.y};
      thread.number = i;
      thread.state = State::ready;
      thread.warp_epoch = 0;
      ready_.push_back(&thread);
    }
    std::shuffle(ready_.begin(), ready_.end(), random_);
    exited_ = waiting_ = 0;
    running_block = this;
    while (exited_ < threads_.size()) {
      if (ready_.empty()) release_block_barrier();
      Thread* const next = ready_.back();
      ready_.pop_back();
      resume(*next);
    }
    running_block = nullptr;
  }

  void wait(State state) {
    running_thread->state = state;
    Worker& worker = *running_thread->worker;
    worker.scheduler = std::move(worker.scheduler).resume();
  }

  Moment moment(const Thread& thread, std::uint32_t serial) const {
    return {serial, number_, epoch_, thread.number & 0x3ffu, thread.warp_epoch & 0x3fffffu};
  }

  std::string describe(const Thread& t) const {
    return fmt::format("  kernel {}, block ({}, {}, {}), thread ({}, {}, {}) on cuda:{}\n", launch_.name,
                       block_.x, block_.y, block_.z, t.index.x, t.index.y, t.index.z, memory_.ordinal());
  }

  const Launch& launch() const { return launch_; }
  uint3 block() const { return block_; }
  std::uint32_t serial() const { return pool_.block_serial; }
  SharedMemory& shared() { return pool_.shared; }
  DeviceMemory& memory() { return memory_; }

 private:
  void resume(Thread& thread) {
    if (thread.worker == nullptr) {
      thread.worker = idle_worker();
      thread.worker->thread = &thread;
    }
    Worker& worker = *thread.worker;
    running_thread = &thread;
    worker.fiber = std::move(worker.fiber).resume();
    running_thread = nullptr;
    switch (thread.state) {
      case State::ready:
        break;  // not reached: a thread comes back only to wait or because it is done
      case State::at_block_barrier:
        ++waiting_;
        break;
      case State::at_warp_barrier:
        release_warp_barrier(thread);
        break;
      case State::exited:
        ++exited_;
        thread.worker = nullptr;
        pool_.idle.push_back(&worker);
        break;
    }
  }

  Worker* idle_worker() {
    if (pool_.idle.empty()) {
      pool_.workers.push_back(std::make_unique<Worker>());
      pool_.idle.push_back(pool_.workers.back().get());
      start(*pool_.workers.back());
    }
    Worker* const worker = pool_.idle.back();
    pool_.idle.pop_back();
    return worker;
  }

  static void start(Worker& worker) {
    worker.stack = static_cast<char*>(
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    worker.fiber =
        context::fiber(std::allocator_arg, KeptStack{worker.stack}, [&worker](context::fiber&& from) {
          worker.scheduler = std::move(from);
          while (true) {
            call_kernel();
            worker.thread->state = State::exited;
            worker.scheduler = std::move(worker.scheduler).resume();
          }
          return std::move(worker.scheduler);
        });
  }

  // Not inlined: a worker may find itself on another host thread after each switch, where the variable is
  // another one.
  [[gnu::noinline]] static void call_kernel() {
    const Launch& launch = running_block->launch_;
    launch.call(launch.arguments);
  }

  // All threads wait or are done: they must all be at the same barrier.
  void release_block_barrier() {
    if (waiting_ != threads_.size()) {
      const auto stuck = std::find_if(threads_.begin(), threads_.end(), [](const Thread& t) {
        return t.state == State::at_block_barrier || t.state == State::at_warp_barrier;
      });
      const auto other = std::find_if(threads_.begin(), threads_.end(),
                                      [&](const Thread& t) { return t.state != stuck->state; });
      report(nullptr,
             "barrier divergence: {} of {} threads wait at __syncthreads, {} have exited and {} wait at a "
             "warp barrier that the other lanes of its mask do not reach\n{}  against\n{}",
             waiting_, threads_.size(), exited_, threads_.size() - waiting_ - exited_, describe(*stuck),
             other == threads_.end() ? "" : describe(*other));
    }
    ++epoch_;
    waiting_ = 0;
    for (Thread& thread : threads_) {
      thread.state = State::ready;
      ready_.push_back(&thread);
    }
    std::shuffle(ready_.begin(), ready_.end(), random_);
  }

  // Lets the lanes of a mask go on once they are all there, each with what the others brought.
  void release_warp_barrier(Thread& arrived) {
    const std::uint32_t first = arrived.number / kWarpSize * kWarpSize;
    const unsigned own = 1u << arrived.number % kWarpSize;
    if ((arrived.mask & own) == 0)
      report(nullptr,
             "warp divergence: the mask {:#x} of a warp barrier does not name the lane that calls it\n{}",
             arrived.mask, describe(arrived));
    bool all_here = true;
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
      const std::size_t number = std::size_t{first} + lane;
      const Thread* const other = number < threads_.size() ? &threads_[number] : nullptr;
      const bool waits = other != nullptr && other->state == State::at_warp_barrier;
      const bool is_named = arrived.mask >> lane & 1;
      if (waits && other->mask != arrived.mask && (is_named || (other->mask & own) != 0))
        report(nullptr,
               "warp divergence: lanes of one warp wait with the masks {:#x} and {:#x}\n{}  against\n{}",
               arrived.mask, other->mask, describe(arrived), describe(*other));
      if (is_named && (other == nullptr || other->state == State::exited))
        report(nullptr, "warp divergence: the mask {:#x} of a warp barrier names lane {}, which {}\n{}",
               arrived.mask, lane, other == nullptr ? "does not exist" : "has exited", describe(arrived));
      all_here = all_here && (waits || !is_named);
    }
    if (!all_here) return;
    std::uint64_t brought[kWarpSize] = {};
    for (unsigned lane = 0; lane < kWarpSize; ++lane)
      if (arrived.mask >> lane & 1) brought[lane] = threads_[first + lane].bits;
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
      if ((arrived.mask >> lane & 1) == 0) continue;
      Thread& thread = threads_[first + lane];
      std::copy(std::begin(brought), std::end(brought), thread.received);
      if (thread.ordering == Ordering::memory) ++thread.warp_epoch;
      thread.state = State::ready;
      ready_.push_back(&thread);
      std::swap(ready_.back(), ready_[random_() % ready_.size()]);
    }
  }

  const Launch& launch_;
  DeviceMemory& memory_;
  std::mt19937_64& random_;
  Pool& pool_;
  std::vector<Thread> threads_;
  std::vector<Thread*> ready_;
  uint3 block_{};
  std::uint32_t number_ = 0, epoch_ = 0;
  std::size_t exited_ = 0, waiting_ = 0;
};

}  // namespace

void run_launch(const Launch& launch, DeviceMemory& memory, std::mt19937_64& random) {
  const DeviceMemory::Access access(memory);
  static Pool pool;  // the machine's lock is held
  BlockRunner runner(launch, memory, random, pool);
  const std::size_t all = std::size_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  const std::size_t blocks = launch.only.empty() ? all : launch.only.size();
  // i -> (start + i * step) mod blocks visits every block once if step and blocks share no divisor.
  const std::size_t start = random() % blocks;
  std::size_t step = random() % blocks + 1;
  while (std::gcd(step, blocks) != 1) step = step % blocks + 1;
  for (std::size_t i = 0, next = start; i < blocks; ++i, next = (next + step) % blocks) {
    const std::size_t block = launch.only.empty() ? next : launch.only[next];
    const uint3 index{static_cast<unsigned>(block % launch.grid.x),
                      static_cast<unsigned>(block / launch.grid.x % launch.grid.y),
                      static_cast<unsigned>(block / launch.grid.x / launch.grid.y)};
    runner.run(index, static_cast<std::uint32_t>(block));
  }
}

std::string describe_current_thread() {
  return running_thread == nullptr ? "" : running_block->describe(*running_thread);
}

bool in_device_code() { return running_thread != nullptr; }

void check_device_access(const void* address, std::size_t bytes, bool is_write, const void* code) {
  Thread& thread = *running_thread;
  const char* const at = static_cast<const char*>(address);
  const auto within = [&](const void* begin, std::size_t size) {
    return static_cast<std::size_t>(at - static_cast<const char*>(begin)) < size;
  };
  if (within(thread.worker->stack, kStackBytes)) return;
  const Launch& launch = running_block->launch();
  if (!is_write && within(launch.arguments, launch.argument_bytes)) return;
  const char* const verb = is_write ? "write" : "read";

  SharedMemory& shared = running_block->shared();
  DeviceMemory& memory = running_block->memory();
  const bool is_shared = shared.shadow().contains(address);
  if (!is_shared && !memory.contains(address))
    report(code, "device code on cuda:{} touches memory that is not its own: {} of {} bytes at {}{}",
           memory.ordinal(), verb, bytes, address, describe_foreign(address));
  Shadow& shadow = is_shared ? shared.shadow() : memory.shadow();
  const auto where = [&](const void* byte) {
    return is_shared ? fmt::format("byte {} of {} bytes of shared memory",
                                   static_cast<const char*>(byte) - shared.data(), launch.shared_bytes)
                     : memory.describe(byte);
  };
  if (!shadow.is_plainly_fine(address, bytes, is_write)) {
    if (const void* bad = shadow.first_forbidden(address, bytes)) {
      const bool freed = shadow.contains(bad) && shadow.state(bad) == ByteState::freed;
      report(code, "{}: {} of {} bytes touches {}", freed ? "use after free" : "out of bounds", verb, bytes,
             where(bad));
    }
    if (const void* bad = is_write ? nullptr : shadow.first_unwritten(address, bytes))
      report(code, "read of never-written memory: {}", where(bad));
  }
  if (is_write) shadow.set(address, bytes, ByteState::written);
  const Moment now = running_block->moment(thread, is_shared ? running_block->serial() : launch.serial);
  if (const Race race = shadow.enter(address, bytes, now, is_write); race.earlier != nullptr)
    report(code, "data race: {} of {} is not ordered with an access of block {}, thread {} by any barrier",
           verb, where(race.at), race.earlier->block, race.earlier->thread);
}

uint3 thread_index() { return running_thread->index; }
uint3 block_index() { return running_block->block(); }
uint3 block_extent() {
  const dim3& extent = running_block->launch().block;
  return {extent.x, extent.y, extent.z};
}
uint3 grid_extent() {
  const dim3& extent = running_block->launch().grid;
  return {extent.x, extent.y, extent.z};
}

void* shared_memory() { return running_block->shared().data(); }

void block_barrier() { running_block->wait(State::at_block_barrier); }

namespace {

void meet_lanes(unsigned mask, Ordering ordering) {
  running_thread->mask = mask;
  running_thread->ordering = ordering;
  running_block->wait(State::at_warp_barrier);
}

}  // namespace

void warp_barrier(unsigned mask) { meet_lanes(mask, Ordering::memory); }

std::uint64_t warp_exchange_xor(unsigned mask, std::uint64_t bits, unsigned lane_mask) {
  Thread& thread = *running_thread;
  thread.bits = bits;
  meet_lanes(mask, Ordering::none);
  const unsigned source = thread.number % kWarpSize ^ lane_mask;
  if (source >= kWarpSize || (mask >> source & 1) == 0)
    report(__builtin_return_address(0),
           "warp divergence: a lane reads lane {}, which is not in the mask {:#x}", source, mask);
  return thread.received[source];
}

}  // namespace virtual_gpu
