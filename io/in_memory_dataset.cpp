#include "io/in_memory_dataset.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "core/base/error.h"

namespace annulus {

InMemoryDataset::InMemoryDataset(DatasetInfo info, std::vector<std::uint8_t> images,
                                 std::vector<std::int32_t> labels)
    : Dataset(std::move(info)), images_(std::move(images)), labels_(std::move(labels)) {
  require<DataError>(size() > 0 && image_bytes() > 0,
                     "{}: there is nothing in it: {} samples of {} x {} x {}", this->info().name, size(),
                     height(), width(), channels());
  require<DataError>(images_.size() / image_bytes() == size() && images_.size() % image_bytes() == 0,
                     "{}: {} bytes of pixels are not {} images of {} x {} x {}", this->info().name,
                     images_.size(), size(), height(), width(), channels());
  require<DataError>(labels_.size() == size(), "{}: {} images, but {} labels", this->info().name, size(),
                     labels_.size());
}

void InMemoryDataset::read(std::size_t index, std::uint8_t* image) const {
  std::memcpy(image, images_.data() + index * image_bytes(), image_bytes());
}

ChannelStatistics channel_statistics(std::span<const std::uint8_t> pixels, std::size_t channels) {
  // A sum of squares stays below 2^64 up to 2.8e14 pixels of a channel.
  std::vector<std::uint64_t> sum(channels), sum_of_squares(channels);
  for (std::size_t i = 0; i < pixels.size(); i += channels)
    for (std::size_t c = 0; c < channels; ++c) {
      const std::uint64_t pixel = pixels[i + c];
      sum[c] += pixel;
      sum_of_squares[c] += pixel * pixel;
    }
  ChannelStatistics statistics;
  const double count = static_cast<double>(pixels.size()) / static_cast<double>(channels);
  for (std::size_t c = 0; c < channels; ++c) {
    const double mean = static_cast<double>(sum[c]) / count;
    const double variance = static_cast<double>(sum_of_squares[c]) / count - mean * mean;
    statistics.mean.push_back(static_cast<float>(mean / 255));
    statistics.stddev.push_back(variance > 0 ? static_cast<float>(std::sqrt(variance) / 255) : 1.0f);
  }
  return statistics;
}

std::vector<std::int32_t> check_labels(std::span<const std::int64_t> labels, std::size_t classes,
                                       std::string_view file, std::string_view remedy) {
  std::vector<std::int32_t> checked(labels.size());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    require<DataError>(labels[i] >= 0 && static_cast<std::uint64_t>(labels[i]) < classes,
                       "{}: label {} of sample {} is out of range: {} classes have labels 0 to {}; {}", file,
                       labels[i], i, classes, classes - 1, remedy);
    checked[i] = static_cast<std::int32_t>(labels[i]);
  }
  return checked;
}

std::size_t saturating_product(std::span<const std::size_t> extents) {
  std::size_t product = 1;
  for (const std::size_t extent : extents)
    if (__builtin_mul_overflow(product, extent, &product)) return std::numeric_limits<std::size_t>::max();
  return product;
}

}  // namespace annulus
