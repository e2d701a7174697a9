#include "io/synthetic.h"

#include <utility>

#include "core/base/error.h"
#include "core/base/philox.h"

namespace annulus {
namespace {

constexpr std::size_t kGrid = 4;  // cells of a pattern along each side of the image

// The last part of the Philox key: noise of the two splits, and patterns.
constexpr std::uint64_t kTrainNoise = 0, kTestNoise = 1, kPatterns = 2;

/// Hands out the bytes of a Philox sequence one after the other.
class RandomBytes {
 public:
  explicit RandomBytes(const Philox& philox) : philox_(philox) {}

  std::uint8_t next() {
    if (used_ == 16) {
      block_ = philox_.block(next_block_++);
      used_ = 0;
    }
    const std::uint32_t word = block_.word[used_ / 4];
    return static_cast<std::uint8_t>(word >> (8 * (used_++ % 4)));
  }

 private:
  Philox philox_;
  PhiloxBlock block_{};
  std::uint64_t next_block_ = 0;
  unsigned used_ = 16;
};

DatasetInfo complete(DatasetInfo info) {
  require<ConfigError>(
      info.size > 0 && info.height > 0 && info.width > 0 && info.channels > 0 && info.classes > 0,
      "{}: {} samples of {} x {} x {} in {} classes: each number must be at least 1", info.name, info.size,
      info.height, info.width, info.channels, info.classes);
  // The mean of two uniform bytes has mean 1/2 and variance 1/24, in units of 255.
  info.mean.assign(info.channels, 0.5f);
  info.stddev.assign(info.channels, 0.2041241f);
  return info;
}

}  // namespace

SyntheticDataset::SyntheticDataset(DatasetInfo info, std::uint64_t seed, Split split)
    : Dataset(complete(std::move(info))), seed_(seed), split_(split) {
  for (std::size_t k = 0; k < classes(); ++k) {
    RandomBytes bytes(Philox(seed_, RandomPurpose::synthetic, k, kPatterns));
    for (std::size_t i = 0; i < kGrid * kGrid * channels(); ++i) patterns_.push_back(bytes.next());
  }
}

void SyntheticDataset::read(std::size_t index, std::uint8_t* image) const {
  const std::uint8_t* const pattern = patterns_.data() + index % classes() * kGrid * kGrid * channels();
  RandomBytes noise(
      Philox(seed_, RandomPurpose::synthetic, index, split_ == Split::train ? kTrainNoise : kTestNoise));
  for (std::size_t h = 0; h < height(); ++h)
    for (std::size_t w = 0; w < width(); ++w) {
      const std::uint8_t* const cell =
          pattern + (h * kGrid / height() * kGrid + w * kGrid / width()) * channels();
      for (std::size_t c = 0; c < channels(); ++c)
        *image++ = static_cast<std::uint8_t>((unsigned{cell[c]} + noise.next()) / 2);
    }
}

}  // namespace annulus
