// Checkpoints: named tensors with their device tags, and the training state, in one HDF5 file.
// docs/checkpoint-format.md specifies the file; io/checkpoint_directory.h publishes files whole or not at
// all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/device.h"
#include "core/base/dtype.h"
#include "core/base/stream.h"
#include "core/base/tensor.h"
#include "io/file.h"

namespace annulus {

/// What a tensor is to the model.
enum class TensorRole { parameter, buffer, optimizer_state };

/// "parameter", "buffer", "optimizer_state".
std::string_view name_of(TensorRole role);

/// Where a device tag was written: tags are ordinals, which mean nothing without the machine.
struct Provenance {
  std::string host;
  std::string device_name;  ///< "NVIDIA H200"; empty for the CPU
  std::string device_uuid;  ///< "GPU-..."; empty where unknown
  int rank = 0;             ///< global rank of the writer

  friend bool operator==(const Provenance&, const Provenance&) = default;
};

/// The provenance of tensors that live on `device` of this process.
Provenance local_provenance(Device device, int rank);

/// Everything a checkpoint says about one tensor, except its elements.
struct TensorRecord {
  std::string name;  ///< unique in the file; any UTF-8, see docs/checkpoint-format.md
  TensorRole role = TensorRole::parameter;
  std::string of;  ///< optimizer state: the parameter it belongs to, or empty
  DType dtype = DType::f32;
  std::vector<std::size_t> shape;  ///< row-major extents, at most kMaxRank; empty for a scalar
  std::string device = "cpu";      ///< the tag: the device it lived on, "cpu" or "cuda:K"
  Provenance provenance;           ///< of the tag
  std::uint64_t offset = 0;        ///< first byte in the file; set by the library
  std::uint32_t crc32c = 0;        ///< of the elements' bytes; set by the library

  static constexpr std::size_t kMaxRank = 8;
  std::uint64_t elements() const;
  std::uint64_t bytes() const;
};

/// Training state by name: step, epoch, seed, model, ... Floating-point values must be finite.
using AttributeValue = std::variant<std::int64_t, double, std::string>;
using Attributes = std::map<std::string, AttributeValue>;

/// A tensor to write. `data` holds record.bytes() bytes on the CPU or on the device of the stream.
struct TensorToSave {
  TensorRecord record;
  Tensor data;
};

/// The usual case: dtype, shape and device tag are those of `data`.
TensorToSave tensor_to_save(std::string name, TensorRole role, Tensor data, const Provenance& provenance,
                            std::string of = {});

/// Writes a complete checkpoint to `path`, which must not exist yet, and does not fsync it. Tensors on a
/// CUDA device go through two pinned staging buffers in the order of `stream`. Free space is checked and
/// reserved first. Throws CheckpointError if the records are not a checkpoint (names, roles, sizes),
/// DeviceError for a tensor on a device that is not the stream's, FileError if the disk is full or
/// fails; the incomplete file is then left for the caller to remove.
///
/// A process under a file size limit (ulimit -f) gets SIGXFSZ past it; ignore that signal to get FileError.
void write_checkpoint(const std::filesystem::path& path, std::span<const TensorToSave> tensors,
                      const Attributes& attributes, StreamView stream = {});

/// A tensor to read: `destination` has exactly the shape and dtype of the tensor `name` of the file.
struct TensorToLoad {
  std::string name;
  Tensor destination;
};

/// An open checkpoint. Opening it validates the structure and the manifest (every tensor is there, with
/// the stated type, shape and extent inside the file), but reads no elements and resolves no device.
/// Everything that is wrong with the file is a CheckpointError that names the file and the tensor; a file
/// that cannot be opened or read is a FileError. The file may be renamed or removed while it is open.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t file_bytes() const { return file_bytes_; }
  int format_version() const { return format_version_; }
  /// The version of Annulus that wrote the file.
  const std::string& engine_version() const { return engine_version_; }

  /// In the order in which they were written.
  std::span<const TensorRecord> tensors() const { return tensors_; }
  /// Null if there is no tensor of that name.
  const TensorRecord* find(std::string_view name) const;

  const Attributes& attributes() const { return attributes_; }
  /// One attribute; throws CheckpointError that names it if it is missing or of another type.
  std::int64_t integer(const std::string& name) const;
  double number(const std::string& name) const;
  const std::string& text(const std::string& name) const;

  /// Reads every byte of every tensor and compares checksums, and the attributes that are shown to
  /// users of HDF5 tools with the manifest. Throws CheckpointError at the first difference.
  void verify() const;

  /// Reads tensors onto the CPU or the stream's device, and returns when they are there. First checks
  /// every name, shape and dtype and the checksum of every tensor asked for: when that throws, no
  /// destination has been touched. Uses at most 17 MiB of host memory besides the destinations.
  /// After the checks only a failing disk or device, or a file changed in place meanwhile, can make it
  /// throw with destinations partly written; the message then says so.
  void load(std::span<const TensorToLoad> tensors, StreamView stream = {}) const;

  /// Bytes [first, first + out.size()) of the elements of `record`, which is one of tensors().
  void read_bytes(const TensorRecord& record, std::uint64_t first, std::span<std::byte> out) const;

 private:
  const TensorRecord& checked(const TensorToLoad& tensor, StreamView stream) const;
  void check_crc(const TensorRecord& record, std::uint32_t found) const;
  void verify_elements(const TensorRecord& record, std::span<std::byte> staging) const;
  template <class T>
  const T& attribute(const std::string& name, const char* type) const;

  std::filesystem::path path_;
  File file_;
  std::uint64_t file_bytes_ = 0;
  int format_version_ = 0;
  std::string engine_version_;
  std::vector<TensorRecord> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
  Attributes attributes_;
};

}  // namespace annulus
