// Datasets in HDF5 files: `images`, u8 [samples, height, width] or [samples, height, width, channels], and
// `labels`, any integer type [samples].
#pragma once

#include <memory>
#include <string>

#include "io/dataset.h"

namespace annulus {

/// The rule for where a split is: in the group of its name ("train" or "test") if the file has that group,
/// else in the root of the file. The test split is looked for in `test_file`; if that is empty, in `file`,
/// where it must then be in a group.
struct Hdf5Source {
  std::string name;  ///< for messages
  std::string file;
  std::string test_file;
  std::size_t classes = 10;
};

/// Reads a split into memory whole. Files are not trusted: links other than hard ones, external and virtual
/// storage and filters other than deflate are refused, and nothing is allocated before the announced size has
/// been checked against the bytes that the file really stores. Throws DataError that names the file and the
/// dataset.
std::unique_ptr<Dataset> open_hdf5(const Hdf5Source& source, Split split);

/// Whether there is a test split at all.
bool has_hdf5_test_split(const Hdf5Source& source);

}  // namespace annulus
