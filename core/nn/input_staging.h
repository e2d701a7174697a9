// InputStaging: the micro-batches of a step on the device.
#pragma once

#include <cstddef>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/micro_batch.h"

namespace annulus {

class InputStaging {
 public:
  explicit InputStaging(Device device) : device_(device) {}

  /// Copies the i-th micro-batch of a step to the device, in the order of `stream`, and returns its tensors
  /// there. They are where those of the last i-th micro-batch were unless it was smaller. On the CPU, which
  /// reads the micro-batch where it is, returns `batch` itself.
  MicroBatch stage(StreamView stream, std::size_t i, const MicroBatch& batch);

 private:
  struct Slot {
    Buffer images, labels, sample_index;
  };

  Tensor copy(StreamView stream, Buffer& slot, const Tensor& host) const;

  Device device_;
  std::vector<Slot> slots_;
};

}  // namespace annulus
