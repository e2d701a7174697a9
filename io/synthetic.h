// Made-up data that can be learned: for tests, for benches and for trying things without a download.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "io/dataset.h"

namespace annulus {

/// Every class has a pattern, a coarse grid of random grey levels stretched over the image; an image is the
/// mean of its class's pattern and of uniform noise, and sample i is of class i mod classes. Images are made
/// when they are read, from Philox(seed, synthetic, sample, split), so a dataset takes no memory and sample i
/// is the same everywhere. Both splits share the patterns and differ in the noise.
class SyntheticDataset final : public Dataset {
 public:
  /// Takes size, height, width, channels and classes (all at least 1) and the name from `info`; mean and
  /// stddev are those of the distribution. Throws ConfigError if an extent is 0.
  SyntheticDataset(DatasetInfo info, std::uint64_t seed, Split split);

  void read(std::size_t index, std::uint8_t* image) const override;
  std::int32_t label(std::size_t index) const override {
    return static_cast<std::int32_t>(index % classes());
  }

 private:
  std::uint64_t seed_;
  Split split_;
  std::vector<std::uint8_t> rows_;  // [classes, grid, width, channels]: patterns, stretched in width only
};

}  // namespace annulus
