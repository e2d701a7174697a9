// The HDF5 side of reading: a file is accepted only if it has the structure that the format allows, so
// that neither a damaged nor a hostile file makes the reader look anywhere but inside the file.
// Writing uses io/checkpoint_layout.h.
#pragma once

#include <filesystem>

#include "io/checkpoint_manifest.h"
#include "io/file.h"

namespace annulus {

/// Reads the manifest of `file` and checks that the file holds exactly the tensors it lists: hard links to
/// contiguous datasets without filters, external or virtual storage, of the listed types, shapes and
/// offsets, disjoint and inside the file. Reads no elements. Throws CheckpointError that names `path` and
/// the tensor.
Manifest read_structure(const std::filesystem::path& path, const File& file);

/// Compares every HDF5 attribute with the manifest, which is what the reader goes by. Throws
/// CheckpointError at the first that differs.
void verify_attributes(const std::filesystem::path& path, const File& file, const Manifest& manifest);

}  // namespace annulus
