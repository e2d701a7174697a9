// The batches that one rank evaluates: its contiguous share of a dataset, every sample once and none padded.
#pragma once

#include <cstddef>

#include "core/base/micro_batch.h"
#include "io/batch_memory.h"
#include "io/dataset.h"
#include "io/sampler.h"

namespace annulus {

/// Reads a rank's share in dataset order, at most `max_samples` at a time. Ranks may have different numbers
/// of batches, even none, so nothing collective belongs inside a loop over them.
class EvaluationLoader {
 public:
  /// `dataset` must outlive the loader. The batch lies in host memory that `device` can copy from
  /// asynchronously. Throws ConfigError if max_samples is 0.
  EvaluationLoader(const Dataset& dataset, int rank, int world_size, std::size_t max_samples, Device device);

  std::size_t batches() const { return (share_.size() + max_samples_ - 1) / max_samples_; }

  /// Batch `index` < batches(). Valid until the following call, by which time every asynchronous copy out of
  /// it must have completed.
  MicroBatch read(std::size_t index) const;

 private:
  const Dataset& dataset_;
  SampleRange share_;
  std::size_t max_samples_;
  BatchMemory memory_;
};

}  // namespace annulus
