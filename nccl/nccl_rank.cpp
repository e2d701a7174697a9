#if ANNULUS_HAS_NCCL
#include "nccl/nccl_rank.h"

#include <exception>
#include <string>

namespace annulus {
namespace {

using Clock = std::chrono::steady_clock;

// Looks again at once while a collective may just be ending, then leaves the core to others.
void pause(Clock::duration waited) {
  if (waited < std::chrono::milliseconds{1})
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(std::chrono::microseconds{50});
}

std::string describe(const NcclOperation& operation, std::uint64_t number) {
  if (operation.count == 0) return operation.name;
  return fmt::format("{} of {} {} (operation {})", operation.name, operation.count, name_of(operation.dtype),
                     number);
}

}  // namespace

NcclRank::NcclRank(Communicator& host, Device device, std::chrono::milliseconds deadline)
    : host_(host),
      device_(device),
      deadline_(deadline),
      rank_(host.rank()),
      world_size_(host.world_size()),
      owner_(std::this_thread::get_id()),
      exceptions_(std::uncaught_exceptions()) {
  try {
    join(host);
  } catch (const std::exception& error) {
    abort(error.what());
    throw;
  }
}

NcclRank::~NcclRank() {
  if (comm_ != nullptr && std::uncaught_exceptions() == exceptions_) {
    try {
      finalize();
    } catch (...) {  // the other ranks have been told
    }
  }
  abort_now();
}

void NcclRank::join(Communicator& host) {
  const DeviceGuard guard(device_);
  ncclUniqueId id{};
  if (rank_ == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) fail_with(result);
  }
  host.broadcast(&id, sizeof id, DType::u8, 0, StreamView());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  settle(ncclCommInitRankConfig(&comm_, world_size_, id, rank_, &config));
}

void NcclRank::finalize() {
  const DeviceGuard guard(device_);
  current_ = {"finalizing the communicator"};
  check();
  settle(ncclCommFinalize(comm_));
  const ncclResult_t result = ncclCommDestroy(comm_);
  if (result != ncclSuccess) fail_with(result);
  comm_ = nullptr;
}

void NcclRank::settle(ncclResult_t result) {
  if (result != ncclSuccess && result != ncclInProgress) fail_with(result);
  state_ = result;
  if (result == ncclInProgress) wait_until([this] { return state_ != ncclInProgress; });
}

void NcclRank::wait(const Event& event) {
  wait_until([&] { return event.query(); });
}

template <class Done>
void NcclRank::wait_until(const Done& done) {
  const auto start = Clock::now();
  for (;;) {
    check();
    if (done()) return;
    const auto waited = Clock::now() - start;
    if (waited > deadline_)
      fail(fmt::format(
          "waited {:.1f} s, and NCCL knows of no error: another rank has not called it, hangs, is "
          "stopped or is far slower; give it a longer deadline if it only needs more time",
          std::chrono::duration<double>(waited).count()));
    pause(waited);
  }
}

void NcclRank::check() {
  try {
    host_.check();
  } catch (...) {
    abort_now();
    throw;
  }
  const ncclResult_t result = ncclCommGetAsyncError(comm_, &state_);
  if (result != ncclSuccess) fail_with(result);
  if (state_ != ncclSuccess && state_ != ncclInProgress) fail_with(state_);
}

void NcclRank::fail_with(ncclResult_t result) {
  const char* const detail = ncclGetLastError(comm_);
  fail(fmt::format("NCCL says: {}{}{}; if another rank has died or failed, its own message says why",
                   ncclGetErrorString(result), detail != nullptr && *detail != '\0' ? ": " : "",
                   detail == nullptr ? "" : detail));
}

void NcclRank::fail(std::string_view found) {
  const std::string text =
      fmt::format("{} on {}: {}", describe(current_, number_), device_.to_string(), found);
  abort(text.c_str());
  host_.check();  // throws, and names this rank; or the one that failed before it
  throw CommunicationError(text);
}

void NcclRank::abort(const char* reason) noexcept {
  host_.abort(reason);
  if (std::this_thread::get_id() == owner_) abort_now();
}

void NcclRank::abort_now() noexcept {
  if (comm_ == nullptr) return;
  try {
    const DeviceGuard guard(device_);
    (void)ncclCommAbort(comm_);
  } catch (...) {  // the device has failed: there is nothing to end
  }
  comm_ = nullptr;
}

}  // namespace annulus
#endif
