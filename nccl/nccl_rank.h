// One rank's ncclComm_t: nothing that waits for it waits for ever. For sources that are built with NCCL only.
#pragma once

#include <nccl.h>

#include <chrono>
#include <string_view>
#include <thread>

#include "core/base/stream.h"
#include "nccl/communicator.h"

namespace annulus {

/// What is being done, for messages: "all-reduce of 1000 f32".
struct NcclOperation {
  const char* name;
  std::size_t count = 0;
  DType dtype = DType::u8;
};

/// Used by the thread that makes it, except abort(). Errors are CommunicationErrors that name rank, device,
/// operation and what NCCL said. The host communicator is where a failure is recorded: after the first one
/// this communicator is aborted on every rank as soon as the rank looks, and every call throws it.
class NcclRank {
 public:
  /// Collective over the ranks of `host`, which outlives this.
  NcclRank(Communicator& host, Device device, std::chrono::milliseconds deadline);
  ~NcclRank();
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  Device device() const { return device_; }

  /// Makes NCCL calls as one group and returns once they are in their stream: `calls(comm)` returns the first
  /// result that is neither success nor progress, or ncclSuccess.
  template <class Calls>
  void submit(const NcclOperation& operation, const Calls& calls) {
    check();
    current_ = operation;
    ++number_;
    const DeviceGuard guard(device_);
    ncclGroupStart();
    const ncclResult_t called = calls(comm_);
    const ncclResult_t ended = ncclGroupEnd();
    settle(called == ncclSuccess ? ended : called);
  }

  /// Returns once the recorded event has happened.
  void wait(const Event& event);

  /// Throws if this rank, another one or NCCL has found a failure.
  void check();

  /// See Communicator::abort.
  void abort(const char* reason) noexcept;

 private:
  void join(Communicator& host);
  void finalize();
  void settle(ncclResult_t result);
  template <class Done>
  void wait_until(const Done& done);
  [[noreturn]] void fail_with(ncclResult_t result);
  [[noreturn]] void fail(std::string_view found);
  void abort_now() noexcept;

  Communicator& host_;
  Device device_;
  std::chrono::milliseconds deadline_;
  int rank_, world_size_;
  std::thread::id owner_;
  int exceptions_;  // in flight when this was made
  ncclComm_t comm_ = nullptr;
  ncclResult_t state_ = ncclSuccess;
  NcclOperation current_{"making the communicator"};
  std::uint64_t number_ = 0;  // operations submitted
};

}  // namespace annulus
