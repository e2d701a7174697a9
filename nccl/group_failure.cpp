#include "nccl/group_failure.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "nccl/communicator.h"
#include "nccl/futex.h"

namespace annulus {

void GroupFailure::record(std::string_view text) noexcept {
  FailureState expected = FailureState::none;
  if (control_.failure.compare_exchange_strong(expected, FailureState::writing)) {
    const std::size_t size = std::min(text.size(), sizeof(control_.failure_text) - 1);
    std::memcpy(control_.failure_text, text.data(), size);
    control_.failure_text[size] = '\0';
    control_.failure_rank = rank_;
    control_.failure.store(FailureState::ready, std::memory_order_release);
  }
  for (int rank = 0; rank < world_size_; ++rank) futex_wake(slots_[rank].phase);
}

void GroupFailure::fail(std::string_view text) {
  record(text);
  throw_recorded();
}

void GroupFailure::throw_recorded() const {
  // The writer needs a microsecond, unless it dies meanwhile.
  for (int i = 0; i < 100 && control_.failure.load(std::memory_order_acquire) != FailureState::ready; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  if (control_.failure.load(std::memory_order_acquire) != FailureState::ready) {
    throw CommunicationError("a rank died while it reported a failure");
  }
  if (control_.failure_rank == rank_) throw CommunicationError(control_.failure_text);
  throw RelayedError(control_.failure_text);
}

std::string GroupFailure::name(int rank) const {
  const int pid = slots_[rank].pid.load(std::memory_order_relaxed);
  return pid == 0 || pid == getpid() ? fmt::format("rank {}", rank)
                                     : fmt::format("rank {} (pid {})", rank, pid);
}

std::string GroupFailure::names(const std::vector<int>& ranks) const {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + name(rank);
  return text;
}

}  // namespace annulus
