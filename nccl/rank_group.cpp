#include "nccl/rank_group.h"

#include <sched.h>
#include <unistd.h>

#include <vector>

#include "core/base/error.h"
#include "nccl/futex.h"

namespace annulus {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::duration;

// How a rank waits: it spins for about as long as a collective takes, then offers the core to others while it
// keeps looking, then sleeps in the kernel, waking now and then to see whether its peers are still alive.
constexpr int kSpins = 100;
constexpr auto kYieldTime = std::chrono::microseconds{500};
constexpr auto kPollTime = std::chrono::milliseconds{50};
constexpr auto kProgressTime = std::chrono::seconds{5};

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int available_cores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return CPU_SETSIZE;  // fails only beyond that many
  return CPU_COUNT(&cores);
}

}  // namespace

RankGroup::RankGroup(GroupMemory& memory, int rank, int world_size, std::chrono::milliseconds deadline)
    : memory_(memory),
      slots_(reinterpret_cast<RankSlot*>(memory.base() + SharedLayout{world_size}.slots())),
      failure_(*reinterpret_cast<ControlBlock*>(memory.base()), slots_, rank, world_size),
      rank_(rank),
      world_size_(world_size),
      deadline_(deadline),
      // With more ranks than cores, spinning would keep the very rank from running that is waited for.
      spins_(world_size > available_cores() ? 1 : kSpins) {}

void RankGroup::join(const std::function<void()>& pause,
                     const std::function<void(std::string_view)>& progress) {
  RankSlot& own = slots_[rank_];
  std::int32_t nobody = 0;
  require<CommunicationError>(own.pid.compare_exchange_strong(nobody, getpid()),
                              "rank {} has joined already, as process {}; every rank joins once", rank_,
                              nobody);
  own.state.store(RankState::joined, std::memory_order_release);

  const auto has_joined = [&](int rank) {
    return slots_[rank].state.load(std::memory_order_acquire) != RankState::absent;
  };
  const auto start = Clock::now();
  auto next_progress = start + kProgressTime;
  for (;;) {
    failure_.check();
    std::vector<int> missing;
    for (int rank = 0; rank < world_size_; ++rank) {
      if (!has_joined(rank)) missing.push_back(rank);
    }
    if (missing.empty()) break;
    if (const int lost = find_lost_peer([&](int rank) { return !has_joined(rank); }); lost >= 0) {
      failure_.fail(fmt::format("{} before all ranks had joined", describe_loss(lost)));
    }
    const auto now = Clock::now();
    if (now - start > deadline_) {
      failure_.fail(fmt::format("waited {:.1f} s for all {} ranks to join, but not here yet: {}",
                                duration<double>(now - start).count(), world_size_, failure_.names(missing)));
    }
    if (progress && now > next_progress) {
      next_progress += kProgressTime;
      progress(fmt::format("waiting for {} of {} ranks: {}", missing.size(), world_size_,
                           failure_.names(missing)));
    }
    pause();
  }
  synchronise();  // so that nobody leaves while another still looks for who is here
}

void RankGroup::leave() noexcept {
  slots_[rank_].state.store(RankState::left, std::memory_order_release);
  futex_wake(slots_[rank_].phase);
}

void RankGroup::begin(const CollectiveCall& call) {
  failure_.check();
  ++number_;
  slots_[rank_].calls[number_ % 2] = call;
  synchronise();
  // Every rank compares with rank 0, so that all come to the same verdict.
  for (int rank = 1; rank < world_size_; ++rank) {
    const CollectiveCall &first = call_of(0), &other = call_of(rank);
    if (first.kind == other.kind && first.count == other.count && first.dtype == other.dtype &&
        first.root == other.root) {
      continue;
    }
    failure_.fail(
        fmt::format("the ranks disagree about collective {}: {} called {}, but {} called {}; every rank must "
                    "call the same "
                    "collectives in the same order",
                    number_, failure_.name(0), describe(first), failure_.name(rank), describe(other)));
  }
}

bool RankGroup::same_location() const {
  const std::uint64_t own = call_of(rank_).location;
  bool same = own != CollectiveCall::kPrivate;
  for (int rank = 0; rank < world_size_; ++rank) same = same && call_of(rank).location == own;
  return same;
}

// Each rank counts its synchronisation points in its own slot, and waits until all others have counted as
// far: one cache line travels from each rank to each other, and nobody writes what another rank writes.
void RankGroup::synchronise() {
  RankSlot& own = slots_[rank_];
  // Sequentially consistent with the sleeper's count below: either this rank sees the sleeper, or the sleeper
  // sees the new phase.
  own.phase.store(++phase_, std::memory_order_seq_cst);
  if (own.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake(own.phase);
  for (int i = 1; i < world_size_; ++i) wait_for((rank_ + i) % world_size_);
}

bool RankGroup::reached(int rank) const {
  // A peer is at most one point ahead; the difference is right also when the counter wraps around.
  const std::uint32_t phase = slots_[rank].phase.load(std::memory_order_acquire);
  return static_cast<std::int32_t>(phase - phase_) >= 0;
}

void RankGroup::wait_for(int rank) {
  for (int spin = 0; spin < spins_; ++spin) {
    if (reached(rank)) return;
    pause_core();
  }
  wait_long(rank);
}

void RankGroup::wait_long(int rank) {
  const auto start = Clock::now();
  while (Clock::now() - start < kYieldTime) {
    if (reached(rank)) return;
    sched_yield();
  }
  while (!reached(rank)) {
    failure_.check();
    if (const int lost = find_lost_peer([this](int peer) { return reached(peer); }); lost >= 0) {
      failure_.fail(fmt::format("{} while {} waited for it in {}", describe_loss(lost), failure_.name(rank_),
                                current_call()));
    }
    const auto now = Clock::now();
    if (now - start > deadline_) {
      std::vector<int> missing;
      for (int peer = 0; peer < world_size_; ++peer) {
        if (!reached(peer)) missing.push_back(peer);
      }
      failure_.fail(fmt::format(
          "{} waited {:.1f} s in {} for {}, which is alive but hangs, is stopped or is far slower; give it a "
          "longer deadline if it only needs more time",
          failure_.name(rank_), duration<double>(now - start).count(), current_call(),
          failure_.names(missing)));
    }
    sleep_until_change(rank);
  }
}

void RankGroup::sleep_until_change(int rank) {
  RankSlot& peer = slots_[rank];
  peer.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t phase = peer.phase.load(std::memory_order_seq_cst);
  if (static_cast<std::int32_t>(phase - phase_) < 0) futex_wait(peer.phase, phase, kPollTime);
  peer.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

// A rank that has not arrived and never will, or -1.
int RankGroup::find_lost_peer(const std::function<bool(int)>& arrived) const {
  for (int rank = 0; rank < world_size_; ++rank) {
    if (rank == rank_ || arrived(rank)) continue;
    const bool left = slots_[rank].state.load(std::memory_order_acquire) == RankState::left;
    // It may have arrived and ended since the first look.
    if ((left || !memory_.alive(rank)) && !arrived(rank)) return rank;
  }
  return -1;
}

std::string RankGroup::describe_loss(int rank) const {
  const bool left = slots_[rank].state.load(std::memory_order_acquire) == RankState::left;
  return fmt::format("{} {}", failure_.name(rank), left ? "left the run" : "died");
}

void RankGroup::abort(std::string_view reason) noexcept {
  try {
    failure_.record(fmt::format("{} failed: {}", failure_.name(rank_), reason));
  } catch (...) {  // out of memory: the bare reason will do
    failure_.record(reason);
  }
}

std::string RankGroup::describe(const CollectiveCall& call) const {
  switch (call.kind) {
    case CollectiveKind::none:
      return "joining";
    case CollectiveKind::barrier:
      return "a barrier";
    case CollectiveKind::all_reduce:
      return fmt::format("all-reduce of {} {}", call.count, name_of(call.dtype));
    case CollectiveKind::broadcast:
      return fmt::format("broadcast of {} {} from rank {}", call.count, name_of(call.dtype), call.root);
    case CollectiveKind::all_gather:
      return fmt::format("all-gather of {} {}", call.count, name_of(call.dtype));
    case CollectiveKind::allocate:
      return fmt::format("allocate of {} bytes", call.count);
  }
  return "an unknown collective";
}

std::string RankGroup::current_call() const {
  return fmt::format("collective {} ({})", number_, describe(call_of(rank_)));
}

}  // namespace annulus
