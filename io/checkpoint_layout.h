// The HDF5 side of writing. HDF5 lays the file out in memory (a memfd, sparse where the tensors will be)
// and never sees the disk: all writing there is ours, so a full or failing disk meets code that can cope,
// and leaves no open HDF5 file behind. Reading back uses io/checkpoint_structure.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "io/checkpoint_hdf5.h"
#include "io/checkpoint_manifest.h"
#include "io/file.h"

namespace annulus {

class CheckpointLayout {
 public:
  /// Gives every record its offset. `path` is for messages.
  CheckpointLayout(const std::filesystem::path& path, Manifest manifest);

  std::span<const TensorRecord> tensors() const { return manifest_.tensors; }

  /// The first byte that no tensor reaches; a little metadata may follow.
  std::uint64_t tensors_end() const;

  /// Writes everything but the elements to `file`: manifest, attributes and HDF5's own structures, which
  /// fill all gaps between the tensors. checksums[i] is that of tensors()[i]. Called once.
  void finish(std::span<const std::uint32_t> checksums, const File& file);

 private:
  void create_tensor(hid_t group, TensorRecord& record);
  void store_checksum(TensorRecord& record, std::uint32_t checksum);
  void write_manifest();
  void write_gaps(const File& file) const;

  std::filesystem::path path_;
  Manifest manifest_;
  Hdf5Session session_;
  File image_;
  Hdf5Handle file_;
};

}  // namespace annulus
