#include "io/batch_memory.h"

namespace annulus {
namespace {

/// Every array starts on its own 256 bytes, as device memory does.
std::size_t round_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

BatchMemory::BatchMemory(const Dataset& dataset, std::size_t micro_batches, std::size_t max_samples,
                         Device device)
    : height_(dataset.height()), width_(dataset.width()), channels_(dataset.channels()) {
  // Throws if the bytes overflow: a sample's share of labels, indices and padding is below 1024 bytes.
  [[maybe_unused]] const Shape bound{micro_batches, max_samples, dataset.image_bytes() + 1024};
  labels_begin_ = round_up(max_samples * dataset.image_bytes());
  indices_begin_ = labels_begin_ + round_up(max_samples * sizeof(std::int32_t));
  stride_ = indices_begin_ + round_up(max_samples * sizeof(std::int64_t));
  memory_ = Buffer::pinned(device, micro_batches * stride_);
}

MicroBatch BatchMemory::view(std::size_t index, std::size_t samples, std::size_t first_sample) const {
  std::byte* const begin = static_cast<std::byte*>(memory_.data()) + index * stride_;
  return {.images = Tensor(begin, {samples, height_, width_, channels_}, DType::u8),
          .labels = Tensor(begin + labels_begin_, {samples}, DType::i32),
          .sample_index = Tensor(begin + indices_begin_, {samples}, DType::i64),
          .first_sample = first_sample};
}

void read_sample(const Dataset& dataset, std::size_t index, const MicroBatch& batch, std::size_t position) {
  dataset.read(index, batch.images.as<std::uint8_t>() + position * dataset.image_bytes());
  batch.labels.as<std::int32_t>()[position] = dataset.label(index);
  batch.sample_index.as<std::int64_t>()[position] = static_cast<std::int64_t>(index);
}

}  // namespace annulus
