#include "core/nn/input_staging.h"

namespace annulus {

MicroBatch InputStaging::stage(StreamView stream, std::size_t i, const MicroBatch& batch) {
  if (device_.is_cpu()) return batch;
  if (slots_.size() <= i) slots_.resize(i + 1);
  Slot& slot = slots_[i];
  return {.images = copy(stream, slot.images, batch.images),
          .labels = copy(stream, slot.labels, batch.labels),
          .sample_index = copy(stream, slot.sample_index, batch.sample_index),
          .first_sample = batch.first_sample};
}

Tensor InputStaging::copy(StreamView stream, Buffer& slot, const Tensor& host) const {
  if (slot.bytes() < host.bytes()) slot = Buffer(device_, host.bytes());
  if (host.bytes() > 0) copy_bytes(stream, slot.data(), host.data(), host.bytes());
  return Tensor(slot.data(), host.shape(), host.dtype(), device_);
}

}  // namespace annulus
