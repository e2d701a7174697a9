// From the bytes of a dataset to what the first layer reads: normalise, and at training time crop and flip.
#pragma once

#include <array>
#include <cstdint>

#include "core/base/step_values.h"
#include "core/base/stream.h"
#include "core/base/tensor.h"

namespace annulus::kernels {

/// At most this many channels have their own normalisation.
inline constexpr std::size_t kMaxImageChannels = 4;

/// How the bytes of an image lie in memory.
enum class ImageLayout {
  channels_last,  ///< [batch, height, width, channels]
  channels_first  ///< [batch, channels, height, width]
};

struct AugmentOptions {
  ImageLayout layout = ImageLayout::channels_last;  ///< of x
  std::array<float, kMaxImageChannels> mean{};      ///< of pixel / 255, per channel
  std::array<float, kMaxImageChannels> inverse_std{1, 1, 1, 1};
  std::size_t crop_padding =
      0;  ///< zeros (of the normalised image) on each side before a random crop to the same size
  bool horizontal_flip = false;  ///< with probability 1/2
  std::uint64_t seed = 0;
  const StepValues* values = nullptr;  ///< in memory of the stream's device; its epoch is read
};

/// y[b][h][w][c] = (x[b][h'][w'][c] / 255 - mean[c]) * inverse_std[c]; x is u8, in either layout; y is
/// [batch, height, width, channels], f32 or, on CUDA devices, bf16; sample_index [batch] (i64) is each
/// image's index in the dataset. The crop offset and the flip of an image come from words 0, 1 and 2 of
/// Philox(seed, augment, values->epoch, sample_index): vertical offset below(0, 2 * crop_padding + 1),
/// horizontal below(1, ...), flip if word 2 is odd; flip applies to the cropped image. Without crop and flip
/// no random number is drawn, and `values` is not read.
void augment(StreamView stream, const AugmentOptions& options, const Tensor& x, const Tensor& sample_index,
             const Tensor& y);

namespace cpu {
decltype(kernels::augment) augment;
}
namespace cuda {
decltype(kernels::augment) augment;
}

}  // namespace annulus::kernels
