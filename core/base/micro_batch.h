// What travels from a dataset to the first layer.
#pragma once

#include <cstdint>

#include "core/base/tensor.h"

namespace annulus {

/// One micro-batch on the host: a view of memory that the loader owns. May be empty (0 samples).
struct MicroBatch {
  Tensor images;                   ///< u8 [samples, height, width, channels]
  Tensor labels;                   ///< i32 [samples]
  Tensor sample_index;             ///< i64 [samples], each sample's index in the dataset
  std::uint64_t first_sample = 0;  ///< position of its first sample in the global batch
  std::size_t samples() const { return labels.shape().rank() == 0 ? 0 : labels.shape()[0]; }
};

}  // namespace annulus
