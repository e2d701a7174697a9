// IDX, the format of MNIST and its kin: a big-endian header (two zero bytes, the element type, the number of
// extents, the extents) and then the bytes. Files may be gzipped.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/dataset.h"
#include "io/in_memory_dataset.h"

namespace annulus {

/// The contents of an IDX file of unsigned bytes.
struct IdxArray {
  std::vector<std::size_t> extents;
  std::vector<std::uint8_t> bytes;
};

/// Reads `file`, plain or gzipped, whose header must announce u8 with `rank` extents (magic number 0x00000800
/// + rank). Memory grows with what the file really holds, whatever its header announces. Throws DataError if
/// the file cannot be read, is not IDX of this rank, is truncated or goes on after its end.
IdxArray read_idx(const std::string& file, std::size_t rank);

/// Where an IDX dataset is and what its files do not say.
struct IdxSource {
  std::string name;  ///< for messages
  std::string folder;
  std::size_t classes = 10;
  std::optional<ChannelStatistics> statistics;  ///< computed from the training images if absent
};

/// Opens {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz] of a folder as images with one channel.
std::unique_ptr<Dataset> open_idx(const IdxSource& source, Split split);

}  // namespace annulus
