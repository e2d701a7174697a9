#include <algorithm>
#include <array>

#include "core/base/philox.h"
#include "kernels/augment.h"
#include "kernels/check.h"
#include "kernels/dispatch.h"
#include "kernels/multiversion_cpu.h"

namespace annulus::kernels {

void augment(StreamView stream, const AugmentOptions& options, const Tensor& x, const Tensor& sample_index,
             const Tensor& y) {
  check_rank("augment", "y", y, 4);
  const Device device = stream.device();
  check_activation("augment", "y", y, device);
  const Shape& s = y.shape();
  const bool channels_first = options.layout == ImageLayout::channels_first;
  check_tensor("augment", "x", x, channels_first ? Shape{s[0], s[3], s[1], s[2]} : s, device, DType::u8);
  check_tensor("augment", "sample_index", sample_index, {s[0]}, device, DType::i64);
  require<ShapeError>(s[3] <= kMaxImageChannels, "augment: images have at most {} channels, not {}",
                      kMaxImageChannels, s[3]);
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
  const Philox random(options.seed, RandomPurpose::augment, options.values->epoch, sample);
  const PhiloxBlock words = random.block(0);
  if (options.crop_padding > 0) {
    const std::ptrdiff_t padding = static_cast<std::ptrdiff_t>(options.crop_padding);
    placement.top = static_cast<std::ptrdiff_t>(random.below(0, positions)) - padding;
    placement.left = static_cast<std::ptrdiff_t>(random.below(1, positions)) - padding;
  }
  placement.flip = options.horizontal_flip && (words.word[2] & 1) != 0;
  return placement;
}

// What a byte becomes, per channel: 256 divisions instead of one per pixel.
using ValueTable = std::array<std::array<float, 256>, kMaxImageChannels>;

ValueTable make_table(const AugmentOptions& options, std::size_t channels) {
  ValueTable table;
  for (std::size_t channel = 0; channel < channels; ++channel)
    for (std::size_t byte = 0; byte < 256; ++byte)
      table[channel][byte] =
          (static_cast<float>(byte) / 255.0f - options.mean[channel]) * options.inverse_std[channel];
  return table;
}

ANNULUS_MULTIVERSION void look_up(std::size_t count, const float* table, const std::uint8_t* x, float* y) {
  for (std::size_t i = 0; i < count; ++i) y[i] = table[x[i]];
}

// How far apart neighbouring pixels and channels of an image are in memory.
struct Strides {
  std::size_t pixel, channel;
};

// `pixels` pixels in a row of x, written from y on towards the right, or towards the left if flipped.
void normalise(const ValueTable& table, std::size_t pixels, std::size_t channels, Strides strides, bool flip,
               const std::uint8_t* x, float* y) {
  if (channels == 1 && !flip) return look_up(pixels, table[0].data(), x, y);
  const std::ptrdiff_t step =
      flip ? -static_cast<std::ptrdiff_t>(channels) : static_cast<std::ptrdiff_t>(channels);
  for (std::size_t pixel = 0; pixel < pixels; ++pixel, x += strides.pixel, y += step)
    for (std::size_t channel = 0; channel < channels; ++channel)
      y[channel] = table[channel][x[channel * strides.channel]];
}

void place(const ValueTable& table, const Placement& placement, std::size_t height, std::size_t width,
           std::size_t channels, Strides strides, const std::uint8_t* x, float* y) {
  const std::ptrdiff_t columns = static_cast<std::ptrdiff_t>(width);
  // Before a flip, output columns [begin, end) lie in the image.
  const std::ptrdiff_t begin = std::clamp<std::ptrdiff_t>(-placement.left, 0, columns);
  const std::ptrdiff_t end = std::clamp<std::ptrdiff_t>(columns - placement.left, begin, columns);
  const std::ptrdiff_t first_output = placement.flip ? columns - 1 - begin : begin;
  for (std::size_t row = 0; row < height; ++row, y += width * channels) {
    // Unsigned wrap-around makes a negative row as large as one past the end.
    const std::size_t from_row = row + static_cast<std::size_t>(placement.top);
    if (from_row >= height || end - begin < columns) std::fill_n(y, width * channels, 0.0f);
    if (from_row >= height || begin == end) continue;
    const std::size_t from = from_row * width + static_cast<std::size_t>(begin + placement.left);
    normalise(table, static_cast<std::size_t>(end - begin), channels, strides, placement.flip,
              x + from * strides.pixel, y + static_cast<std::size_t>(first_output) * channels);
  }
}

}  // namespace

void augment(StreamView, const AugmentOptions& options, const Tensor& x, const Tensor& sample_index,
             const Tensor& y) {
  const std::size_t height = y.shape()[1], width = y.shape()[2], channels = y.shape()[3];
  const std::size_t image_elements = height * width * channels;
  const ValueTable table = make_table(options, channels);
  const bool channels_first = options.layout == ImageLayout::channels_first;
  const Strides strides = channels_first ? Strides{1, height * width} : Strides{channels, 1};
  const bool draws = options.crop_padding != 0 || options.horizontal_flip;
  for (std::size_t image = 0; image < y.shape()[0]; ++image) {
    const std::uint8_t* const from = x.as<std::uint8_t>() + image * image_elements;
    float* const to = y.as<float>() + image * image_elements;
    if (!draws) {
      normalise(table, height * width, channels, strides, false, from, to);
      continue;
    }
    const auto sample = static_cast<std::uint64_t>(sample_index.as<std::int64_t>()[image]);
    place(table, draw_placement(options, sample), height, width, channels, strides, from, to);
  }
}

}  // namespace cpu
}  // namespace annulus::kernels
