// Random micro-batches for tests of the training step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/base/micro_batch.h"
#include "core/base/philox.h"
#include "core/nn/model_spec.h"

namespace annulus::test {

/// Random images with random labels: sample s is always the same for one shape and seed.
class TestImages {
 public:
  TestImages(InputShape shape, std::size_t samples, std::uint32_t classes, std::uint64_t seed = 1)
      : shape_(shape), images_(samples * pixels()), labels_(samples), index_(samples) {
    for (std::size_t s = 0; s < samples; ++s) {
      const Philox random(seed, RandomPurpose::synthetic, s);
      for (std::size_t i = 0; i < pixels(); ++i)
        images_[s * pixels() + i] = static_cast<std::uint8_t>(random.below(i, 256));
      labels_[s] = static_cast<std::int32_t>(random.below(pixels(), classes));
      index_[s] = static_cast<std::int64_t>(s);
    }
  }

  std::size_t samples() const { return labels_.size(); }

  /// Samples [begin, end) as one micro-batch; `global_begin` is where the global batch begins.
  MicroBatch micro_batch(std::size_t begin, std::size_t end, std::size_t global_begin = 0) {
    const std::size_t count = end - begin;
    return {.images = Tensor(images_.data() + begin * pixels(),
                             {count, shape_.height, shape_.width, shape_.channels}, DType::u8),
            .labels = Tensor(labels_.data() + begin, {count}, DType::i32),
            .sample_index = Tensor(index_.data() + begin, {count}, DType::i64),
            .first_sample = begin - global_begin};
  }

  /// Micro-batches [first, last) of the S into which the batch of samples [begin, end) is cut.
  std::vector<MicroBatch> cut(std::size_t begin, std::size_t end, std::size_t micro_batches,
                              std::size_t first, std::size_t last) {
    std::vector<MicroBatch> cut;
    const std::size_t samples = end - begin;
    for (std::size_t i = first; i < last; ++i)
      cut.push_back(
          micro_batch(begin + i * samples / micro_batches, begin + (i + 1) * samples / micro_batches, begin));
    return cut;
  }

 private:
  std::size_t pixels() const { return shape_.height * shape_.width * shape_.channels; }

  InputShape shape_;
  std::vector<std::uint8_t> images_;
  std::vector<std::int32_t> labels_;
  std::vector<std::int64_t> index_;
};

}  // namespace annulus::test
