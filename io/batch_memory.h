// Host memory that samples are read into, laid out as micro-batches.
#pragma once

#include <cstddef>

#include "core/base/buffer.h"
#include "core/base/micro_batch.h"
#include "io/dataset.h"

namespace annulus {

/// One page-locked block with room for a number of micro-batches of at most `max_samples` samples each.
class BatchMemory {
 public:
  /// `device` is the one that copies from the memory. Throws ShapeError if the bytes overflow std::size_t.
  BatchMemory(const Dataset& dataset, std::size_t micro_batches, std::size_t max_samples, Device device);

  /// Micro-batch `index` with `samples` <= max_samples samples, the first of them at `first_sample` of its
  /// global batch. A view: its contents are what was read into it last.
  MicroBatch view(std::size_t index, std::size_t samples, std::size_t first_sample) const;

 private:
  std::size_t height_, width_, channels_;
  std::size_t labels_begin_ = 0;  // byte offsets within a micro-batch
  std::size_t indices_begin_ = 0;
  std::size_t stride_ = 0;  // bytes of a micro-batch
  Buffer memory_;
};

/// Reads sample `index` of the dataset into position `position` of a micro-batch.
void read_sample(const Dataset& dataset, std::size_t index, const MicroBatch& batch, std::size_t position);

}  // namespace annulus
