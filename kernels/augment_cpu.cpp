#include "core/base/philox.h"
#include "kernels/augment.h"
#include "kernels/check.h"
#include "kernels/dispatch.h"

namespace annulus::kernels {

void augment(StreamView stream, const AugmentOptions& options, const Tensor& x, const Tensor& sample_index,
             const Tensor& y) {
  check_rank("augment", "x", x, 4);
  const Device device = stream.device();
  check_tensor("augment", "x", x, x.shape(), device, DType::u8);
  check_tensor("augment", "sample_index", sample_index, {x.shape()[0]}, device, DType::i64);
  check_tensor("augment", "y", y, x.shape(), device);
  require<ShapeError>(x.shape()[3] <= kMaxImageChannels, "augment: images have at most {} channels, not {}",
                      kMaxImageChannels, x.shape()[3]);
  ANNULUS_DISPATCH(stream, augment, options, x, sample_index, y);
}

namespace cpu {
namespace {

// Where an output pixel comes from: row h reads input row h + top, column w reads column w + left, or its
// mirror image.
struct Placement {
  std::ptrdiff_t top = 0;
  std::ptrdiff_t left = 0;
  bool flip = false;
};

Placement draw_placement(const AugmentOptions& options, std::uint64_t sample) {
  Placement placement;
  const std::uint32_t positions = static_cast<std::uint32_t>(2 * options.crop_padding + 1);
  const Philox random(options.seed, RandomPurpose::augment, options.epoch, sample);
  const PhiloxBlock words = random.block(0);
  if (options.crop_padding > 0) {
    const std::ptrdiff_t padding = static_cast<std::ptrdiff_t>(options.crop_padding);
    placement.top = static_cast<std::ptrdiff_t>(random.below(0, positions)) - padding;
    placement.left = static_cast<std::ptrdiff_t>(random.below(1, positions)) - padding;
  }
  placement.flip = options.horizontal_flip && (words.word[2] & 1) != 0;
  return placement;
}

}  // namespace

void augment(StreamView, const AugmentOptions& options, const Tensor& x, const Tensor& sample_index,
             const Tensor& y) {
  const std::size_t height = x.shape()[1], width = x.shape()[2], channels = x.shape()[3];
  const bool random = options.crop_padding > 0 || options.horizontal_flip;
  const std::int64_t* samples = sample_index.as<std::int64_t>();
  for (std::size_t image = 0; image < x.shape()[0]; ++image) {
    const Placement placement =
        random ? draw_placement(options, static_cast<std::uint64_t>(samples[image])) : Placement{};
    const std::uint8_t* source = x.as<std::uint8_t>() + image * height * width * channels;
    float* target = y.as<float>() + image * height * width * channels;
    for (std::size_t row = 0; row < height; ++row)
      for (std::size_t column = 0; column < width; ++column)
        for (std::size_t channel = 0; channel < channels; ++channel) {
          // Unsigned wrap-around makes a negative coordinate as large as one past the end.
          const std::size_t from_row = row + static_cast<std::size_t>(placement.top);
          const std::size_t from_column =
              (placement.flip ? width - 1 - column : column) + static_cast<std::size_t>(placement.left);
          const bool inside = from_row < height && from_column < width;
          const std::size_t from = (from_row * width + from_column) * channels + channel;
          target[(row * width + column) * channels + channel] =
              inside ? (static_cast<float>(source[from]) / 255.0f - options.mean[channel]) *
                           options.inverse_std[channel]
                     : 0.0f;
        }
  }
}

}  // namespace cpu
}  // namespace annulus::kernels
