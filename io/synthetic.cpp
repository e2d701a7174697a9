#include "io/synthetic.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/base/philox.h"

namespace annulus {
namespace {

constexpr std::size_t kGrid = 4;  // cells of a pattern along each side of the image

// The last part of the Philox key: noise of the two splits, and patterns.
constexpr std::uint64_t kTrainNoise = 0, kTestNoise = 1, kPatterns = 2;

/// Fills bytes[0 .. count) from a Philox sequence, the low byte of each word first.
void fill_random(const Philox& philox, std::uint8_t* bytes, std::size_t count) {
  for (std::size_t begin = 0; begin < count; begin += 16) {
    const PhiloxBlock block = philox.block(begin / 16);
    std::uint8_t values[16];
    for (unsigned i = 0; i < 16; ++i)
      values[i] = static_cast<std::uint8_t>(block.word[i / 4] >> (8 * (i % 4)));
    std::memcpy(bytes + begin, values, std::min<std::size_t>(16, count - begin));
  }
}

DatasetInfo complete(DatasetInfo info) {
  require<ConfigError>(
      info.size > 0 && info.height > 0 && info.width > 0 && info.channels > 0 && info.classes > 0,
      "{}: {} samples of {} x {} x {} in {} classes: each number must be at least 1", info.name, info.size,
      info.height, info.width, info.channels, info.classes);
  constexpr std::size_t most = std::size_t{1} << 26;  // bytes of an image
  require<ConfigError>(
      info.height <= most && info.width <= most / info.height &&
          info.channels <= most / (info.height * info.width) && info.classes <= most,
      "{}: an image of {} x {} x {} in {} classes is too large: expected at most {} bytes and classes",
      info.name, info.height, info.width, info.channels, info.classes, most);
  // The mean of two uniform bytes has mean 1/2 and variance 1/24, in units of 255.
  info.mean.assign(info.channels, 0.5f);
  info.stddev.assign(info.channels, 0.2041241f);
  return info;
}

}  // namespace

SyntheticDataset::SyntheticDataset(DatasetInfo info, std::uint64_t seed, Split split)
    : Dataset(complete(std::move(info))), seed_(seed), split_(split) {
  std::vector<std::uint8_t> cells(kGrid * kGrid * channels());
  rows_.reserve(classes() * kGrid * width() * channels());
  for (std::size_t k = 0; k < classes(); ++k) {
    fill_random(Philox(seed_, RandomPurpose::synthetic, k, kPatterns), cells.data(), cells.size());
    for (std::size_t row = 0; row < kGrid; ++row)
      for (std::size_t w = 0; w < width(); ++w) {
        const std::uint8_t* const cell = cells.data() + (row * kGrid + w * kGrid / width()) * channels();
        rows_.insert(rows_.end(), cell, cell + channels());
      }
  }
}

void SyntheticDataset::read(std::size_t index, std::uint8_t* image) const {
  const std::uint64_t noise = split_ == Split::train ? kTrainNoise : kTestNoise;
  fill_random(Philox(seed_, RandomPurpose::synthetic, index, noise), image, image_bytes());
  const std::size_t row_bytes = width() * channels();
  const std::uint8_t* const pattern = rows_.data() + index % classes() * kGrid * row_bytes;
  for (std::size_t h = 0; h < height(); ++h, image += row_bytes) {
    const std::uint8_t* const row = pattern + h * kGrid / height() * row_bytes;
    for (std::size_t i = 0; i < row_bytes; ++i) image[i] = static_cast<std::uint8_t>((image[i] + row[i]) / 2);
  }
}

}  // namespace annulus
