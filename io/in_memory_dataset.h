// A dataset that lies in memory whole, and the checks and sums that go with it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "io/dataset.h"

namespace annulus {

/// Images [size, height, width, channels] and labels [size] in memory.
class InMemoryDataset final : public Dataset {
 public:
  /// Throws DataError if there are no samples or if images or labels do not have the sizes that `info` says.
  InMemoryDataset(DatasetInfo info, std::vector<std::uint8_t> images, std::vector<std::int32_t> labels);

  void read(std::size_t index, std::uint8_t* image) const override;
  std::int32_t label(std::size_t index) const override { return labels_[index]; }

 private:
  std::vector<std::uint8_t> images_;
  std::vector<std::int32_t> labels_;
};

/// Per channel, of pixel / 255.
struct ChannelStatistics {
  std::vector<float> mean;
  std::vector<float> stddev;  ///< 1 for a channel that never varies
};

/// Mean and (population) standard deviation of images with the channels last. Sums are exact integers, so the
/// result does not depend on the order or the machine. `pixels` must not be empty.
ChannelStatistics channel_statistics(std::span<const std::uint8_t> pixels, std::size_t channels);

/// The labels as i32. Throws DataError that names `file` and ends in `remedy` if one is not in [0, classes).
std::vector<std::int32_t> check_labels(std::span<const std::int64_t> labels, std::size_t classes,
                                       std::string_view file, std::string_view remedy);

/// The product of extents that a file announces, or the largest std::size_t if it does not fit: more than any
/// file holds either way.
std::size_t saturating_product(std::span<const std::size_t> extents);

}  // namespace annulus
