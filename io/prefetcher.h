// Reads the micro-batches of the coming steps on a thread of its own while the current step is trained.
#pragma once

#include <memory>
#include <span>

#include "core/base/device.h"
#include "core/base/micro_batch.h"
#include "io/dataset.h"
#include "io/sampler.h"

namespace annulus {

/// Hands one rank its micro-batches, step after step and epoch after epoch, from a given cursor on. Allocates
/// nothing once it has made the first step.
class Prefetcher {
 public:
  /// Starts reading. `dataset` must outlive the prefetcher. The batches lie in host memory that `device` can
  /// copy from asynchronously. Throws ConfigError if the micro-batches do not fit the world size or `start`
  /// is past the end of its epoch. A cursor at the end of an epoch means the start of the next.
  Prefetcher(const Dataset& dataset, const Sampler& sampler, int rank, int world_size, Cursor start,
             Device device);

  /// Stops the thread; waits for at most one sample to be read or one epoch to be shuffled.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// The step that the following next() returns: what a checkpoint stores.
  Cursor cursor() const;

  /// This rank's micro-batches of the step at cursor(), in order; some may be empty. Valid until the
  /// following call, by which time every asynchronous copy out of them must have completed. Rethrows what
  /// the dataset threw on the thread.
  std::span<const MicroBatch> next();

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace annulus
