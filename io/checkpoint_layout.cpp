#include "io/checkpoint_layout.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "io/crc32c.h"

namespace annulus {
namespace {

File make_image(const std::filesystem::path& path) {
  const int descriptor = ::memfd_create("annulus-checkpoint", MFD_CLOEXEC);
  if (descriptor < 0)
    fail_file(path, "make a file in memory to lay the checkpoint out (memfd_create)", errno);
  return File(descriptor, path);
}

Hdf5Handle create_file(const File& image, const std::filesystem::path& path) {
  const Hdf5Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  (void)H5Pset_obj_track_times(creation.get(), false);
  const Hdf5Handle access = hdf5_file_access();
  // Few large blocks of metadata and of small tensors, rather than an alternation of both. Below the
  // alignment threshold, so that nothing is wasted on aligning them.
  (void)H5Pset_meta_block_size(access.get(), 32768);
  (void)H5Pset_small_data_block_size(access.get(), 32768);
  return hdf5_handle(
      H5Fcreate(descriptor_path(image.descriptor()).c_str(), H5F_ACC_TRUNC, creation.get(), access.get()),
      H5Fclose, path, "lay out the file");
}

// The same tensors give the same bytes: no times.
Hdf5Handle create_group(hid_t file, const char* name, const std::filesystem::path& path) {
  const Hdf5Handle creation(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
  (void)H5Pset_obj_track_times(creation.get(), false);
  return hdf5_handle(H5Gcreate2(file, name, H5P_DEFAULT, creation.get(), H5P_DEFAULT), H5Gclose, path,
                     fmt::format("create group \"{}\"", name));
}

// Contiguous, with its place in the file decided at once and never filled.
Hdf5Handle create_dataset(hid_t parent, const std::string& name, hid_t type, std::span<const hsize_t> extents,
                          const std::filesystem::path& path) {
  const Hdf5Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  (void)H5Pset_obj_track_times(creation.get(), false);
  (void)H5Pset_layout(creation.get(), H5D_CONTIGUOUS);
  (void)H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY);
  (void)H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER);
  const Hdf5Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  (void)H5Pset_char_encoding(links.get(), H5T_CSET_UTF8);
  const Hdf5Handle space(extents.empty()
                             ? H5Screate(H5S_SCALAR)
                             : H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
                         H5Sclose);
  return hdf5_handle(
      H5Dcreate2(parent, name.c_str(), type, space.get(), links.get(), creation.get(), H5P_DEFAULT), H5Dclose,
      path, fmt::format("create dataset \"{}\"", name));
}

}  // namespace

CheckpointLayout::CheckpointLayout(const std::filesystem::path& path, Manifest manifest)
    : path_(path),
      manifest_(std::move(manifest)),
      image_(make_image(path)),
      file_(create_file(image_, path)) {
  write_attribute(file_.get(), "format", kCheckpointFormat, path);
  write_attribute(file_.get(), "format_version", kCheckpointVersion, path);
  write_attribute(file_.get(), "engine_version", manifest_.engine_version, path);
  const Hdf5Handle model = create_group(file_.get(), "model", path);
  const Hdf5Handle optimizer = create_group(file_.get(), "optimizer", path);
  const Hdf5Handle training = create_group(file_.get(), "training", path);
  for (TensorRecord& record : manifest_.tensors)
    create_tensor(record.role == TensorRole::optimizer_state ? optimizer.get() : model.get(), record);
  for (const auto& [name, attribute] : manifest_.attributes)
    std::visit([&](const auto& value) { write_attribute(training.get(), name.c_str(), value, path); },
               attribute);
}

void CheckpointLayout::create_tensor(hid_t group, TensorRecord& record) {
  const std::vector<hsize_t> extents(record.shape.begin(), record.shape.end());
  const Hdf5Handle dataset =
      create_dataset(group, link_name(record.name), hdf5_type(record.dtype).get(), extents, path_);
  if (record.bytes() > 0) record.offset = H5Dget_offset(dataset.get());
  const hid_t id = dataset.get();
  write_attribute(id, "name", record.name, path_);
  write_attribute(id, "role", name_of(record.role), path_);
  write_attribute(id, "of", record.of, path_);
  write_attribute(id, "device", record.device, path_);
  write_attribute(id, "host", record.provenance.host, path_);
  write_attribute(id, "device_name", record.provenance.device_name, path_);
  write_attribute(id, "device_uuid", record.provenance.device_uuid, path_);
  write_attribute(id, "rank", std::int64_t{record.provenance.rank}, path_);
  write_attribute(id, "crc32c", std::int64_t{0}, path_);  // takes the place; finish() knows the value
}

std::uint64_t CheckpointLayout::tensors_end() const {
  std::uint64_t end = 0;
  for (const TensorRecord& record : manifest_.tensors) end = std::max(end, record.offset + record.bytes());
  return end;
}

void CheckpointLayout::finish(std::span<const std::uint32_t> checksums, const File& file) {
  for (std::size_t i = 0; i < manifest_.tensors.size(); ++i)
    store_checksum(manifest_.tensors[i], checksums[i]);
  write_manifest();
  hdf5_check(H5Fflush(file_.get(), H5F_SCOPE_GLOBAL), path_, "lay out the file");
  file_ = Hdf5Handle();
  write_gaps(file);
}

void CheckpointLayout::store_checksum(TensorRecord& record, std::uint32_t checksum) {
  record.crc32c = checksum;
  const std::string link = fmt::format("{}/{}", group_of(record.role), link_name(record.name));
  const Hdf5Handle dataset = hdf5_handle(H5Dopen2(file_.get(), link.c_str(), H5P_DEFAULT), H5Dclose, path_,
                                         fmt::format("open dataset \"{}\"", link));
  const Hdf5Handle attribute = hdf5_handle(H5Aopen(dataset.get(), "crc32c", H5P_DEFAULT), H5Aclose, path_,
                                           "open attribute \"crc32c\"");
  const std::int64_t number = checksum;
  hdf5_check(H5Awrite(attribute.get(), H5T_STD_I64LE, &number), path_, "write attribute \"crc32c\"");
}

void CheckpointLayout::write_manifest() {
  const std::string json = to_json(path_, manifest_);
  const hsize_t extent = json.size();
  const Hdf5Handle type = hdf5_type(DType::u8);
  const Hdf5Handle dataset = create_dataset(file_.get(), "manifest", type.get(), {&extent, 1}, path_);
  write_attribute(dataset.get(), "crc32c", std::int64_t{crc32c(std::as_bytes(std::span(json)))}, path_);
  hdf5_check(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, json.data()), path_,
             "write the manifest");
}

void CheckpointLayout::write_gaps(const File& file) const {
  std::vector<const TensorRecord*> by_offset;
  for (const TensorRecord& record : manifest_.tensors)
    if (record.bytes() > 0) by_offset.push_back(&record);
  std::sort(by_offset.begin(), by_offset.end(),
            [](const TensorRecord* a, const TensorRecord* b) { return a->offset < b->offset; });
  std::vector<std::byte> gap;
  std::uint64_t begin = 0;
  const auto copy_until = [&](std::uint64_t end) {
    gap.resize(end - begin);
    image_.read(begin, gap);
    file.write(begin, gap);
  };
  for (const TensorRecord* record : by_offset) {
    copy_until(record->offset);
    begin = record->offset + record->bytes();
  }
  copy_until(image_.size());
}

}  // namespace annulus
