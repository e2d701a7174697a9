// Communicator: collectives among the ranks of one run.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "core/base/buffer.h"
#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/base/stream.h"

namespace annulus {

/// How long a rank waits for the others before it gives up and names the missing ones.
inline constexpr std::chrono::milliseconds kDefaultDeadline = std::chrono::seconds{60};

/// A failure that another rank found first and reports itself: this rank only stops because of it.
class RelayedError : public CommunicationError {
 public:
  using CommunicationError::CommunicationError;
};

/// Collectives on raw buffers. Counts are elements, never bytes. Every rank calls the same collectives in
/// the same order with the same counts and dtypes. Work is ordered by `stream`; on the CPU a call returns
/// when it is done, on a CUDA device maybe earlier: wait() waits. When a peer dies, hangs past the deadline
/// or disagrees about a collective, every call on every survivor throws CommunicationError that names it
/// (RelayedError where another rank found out first). One thread per rank makes the calls; abort() may come
/// from any thread.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  /// Memory that this communicator moves without an extra copy (a shared-memory segment, a registered
  /// buffer), on `device`. Collective: every rank asks for the same sizes in the same order. Any other
  /// memory works too, with a copy.
  virtual Buffer allocate(Device device, std::size_t bytes) = 0;

  /// In place: every rank's `data` becomes the element-wise sum over ranks, added in the fixed tree
  /// (adjacent aligned pairs of ranks first), so that the bits do not depend on how the sum is split.
  virtual void all_reduce_sum(void* data, std::size_t count, DType dtype, StreamView stream) = 0;

  /// Every rank's `data` becomes root's.
  virtual void broadcast(void* data, std::size_t count, DType dtype, int root, StreamView stream) = 0;

  /// receive[r * count ... ] = rank r's send[0 .. count).
  virtual void all_gather(const void* send, void* receive, std::size_t count, DType dtype,
                          StreamView stream) = 0;

  /// Returns on no rank before every rank has called it.
  virtual void barrier() = 0;

  /// Returns once the collectives that were submitted to `stream` are done; throws as they would. On the CPU
  /// they are done already.
  virtual void wait(StreamView /*stream*/) {}

  /// Throws what every later call would throw, if the group has failed. May be called at any time, and is
  /// cheap.
  virtual void check() {}

  /// Makes every pending and later call on every rank throw, with `reason` and this rank in the message.
  /// Called by a rank that is about to fail, so that its peers need not wait for the deadline.
  virtual void abort(const char* reason) noexcept = 0;
};

/// World size 1.
std::unique_ptr<Communicator> make_identity_communicator();

}  // namespace annulus
