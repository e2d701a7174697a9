// write_checkpoint: layout by HDF5 in memory, then the elements, each read once, checksummed and written.
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <cerrno>

#include "core/base/error.h"
#include "io/checkpoint.h"
#include "io/checkpoint_layout.h"
#include "io/checkpoint_staging.h"
#include "io/crc32c.h"

namespace annulus {
namespace {

void check_tensor(const std::filesystem::path& path, const TensorToSave& tensor, StreamView stream) {
  const Tensor& data = tensor.data;
  const std::string where = describe(path, tensor.record.name);
  require<CheckpointError>(data.bytes() == tensor.record.bytes() && data.dtype() == tensor.record.dtype,
                           "{}: is recorded with {} bytes of {}, but {} of {} were given", where,
                           tensor.record.bytes(), name_of(tensor.record.dtype), data.bytes(),
                           name_of(data.dtype()));
  require<DeviceError>(data.device().is_cpu() || data.device() == stream.device(),
                       "{}: lives on {}; expected the CPU or the stream's device, {}", where,
                       data.device().to_string(), stream.device().to_string());
}

// Before anything is written: what the file system has left, and what the process may write.
void check_space(const std::filesystem::path& path, std::uint64_t bytes) {
  const std::filesystem::path directory = path.has_parent_path() ? path.parent_path() : ".";
  struct statvfs status {};
  if (::statvfs(directory.c_str(), &status) != 0) fail_file(directory, "look at the free space", errno);
  const std::uint64_t free = std::uint64_t{status.f_bavail} * status.f_frsize;
  require<FileError>(
      bytes <= free,
      "{}: the checkpoint takes {} bytes and the file system has {} left; free some space, keep "
      "fewer checkpoints or choose another directory",
      path.string(), bytes, free);
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0) fail_file(path, "look at the file size limit", errno);
  require<FileError>(bytes <= limit.rlim_cur,
                     "{}: the checkpoint takes {} bytes and the file size limit is {}; raise it (ulimit -f)",
                     path.string(), bytes, limit.rlim_cur);
}

}  // namespace

void write_checkpoint(const std::filesystem::path& path, std::span<const TensorToSave> tensors,
                      const Attributes& attributes, StreamView stream) {
  Manifest manifest{ANNULUS_VERSION, {}, attributes};
  std::uint64_t bytes = 0;
  for (const TensorToSave& tensor : tensors) manifest.tensors.push_back(tensor.record);
  check_records(path, manifest.tensors);
  check_attributes(path, attributes);
  for (const TensorToSave& tensor : tensors) {
    check_tensor(path, tensor, stream);
    bytes += tensor.record.bytes();
  }
  // Each tensor's entry in the manifest has a copy in its HDF5 attributes, and those some overhead.
  check_space(path, bytes + 4 * to_json(path, manifest).size() + 65536);

  CheckpointLayout layout(path, std::move(manifest));
  File file = File::create(path);
  file.reserve(layout.tensors_end());
  CheckpointStaging staging(stream);
  std::vector<std::uint32_t> checksums(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t offset = layout.tensors()[i].offset;
    staging.drain(tensors[i].data, [&](std::uint64_t at, std::span<const std::byte> piece) {
      checksums[i] = crc32c(piece, checksums[i]);
      file.write(offset + at, piece);
    });
  }
  layout.finish(checksums, file);
  file.close();
}

}  // namespace annulus
