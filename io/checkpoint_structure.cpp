#include "io/checkpoint_structure.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "io/checkpoint_hdf5.h"
#include "io/crc32c.h"

namespace annulus {
namespace {

// Some 100,000 tensors. Bounds what a hostile manifest can make its parser allocate.
constexpr std::uint64_t kMaxManifestBytes = 32u << 20;

struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

Hdf5Handle open_file(const std::filesystem::path& path, const File& file) {
  static constexpr std::array<unsigned char, 8> kSignature = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1A, '\n'};
  std::array<unsigned char, 8> start{};
  if (file.size() >= start.size()) file.read(0, std::as_writable_bytes(std::span(start)));
  require<CheckpointError>(start == kSignature, "{}: is not an HDF5 file", path.string());
  return hdf5_handle(
      H5Fopen(descriptor_path(file.descriptor()).c_str(), H5F_ACC_RDONLY, hdf5_file_access().get()), H5Fclose,
      path, "open it as an HDF5 file");
}

// The object that `parent` holds under `link`, which must be a hard link: others lead out of the file.
Hdf5Handle open_object(hid_t parent, const std::string& link, H5I_type_t type, const std::string& where) {
  H5L_info_t info;
  require<CheckpointError>(H5Lexists(parent, link.c_str(), H5P_DEFAULT) > 0 &&
                               H5Lget_info(parent, link.c_str(), &info, H5P_DEFAULT) >= 0,
                           "{}: is not in the file; the file is incomplete", where);
  require<CheckpointError>(info.type == H5L_TYPE_HARD,
                           "{}: is a soft or external link; only hard links are allowed", where);
  Hdf5Handle object(H5Oopen(parent, link.c_str(), H5P_DEFAULT), H5Oclose);
  require<CheckpointError>(object.valid() && H5Iget_type(object.get()) == type,
                           "{}: is damaged, or not of the kind of object that belongs there", where);
  return object;
}

void check_link_count(hid_t group, std::size_t expected, const std::string& where) {
  H5G_info_t info;
  require<CheckpointError>(H5Gget_info(group, &info) >= 0, "{}: is damaged", where);
  require<CheckpointError>(info.nlinks == expected, "{}: holds {} objects; expected {}", where, info.nlinks,
                           expected);
}

void check_type(hid_t dataset, DType dtype, const std::string& where) {
  const Hdf5Handle type(H5Dget_type(dataset), H5Tclose);
  require<CheckpointError>(
      type.valid() && H5Tcommitted(type.get()) == 0 && H5Tequal(type.get(), hdf5_type(dtype).get()) > 0,
      "{}: its HDF5 type is not that of {}", where, name_of(dtype));
}

std::vector<hsize_t> shape_of(hid_t dataset, const std::string& where) {
  const Hdf5Handle space(H5Dget_space(dataset), H5Sclose);
  const H5S_class_t kind = space.valid() ? H5Sget_simple_extent_type(space.get()) : H5S_NO_CLASS;
  require<CheckpointError>(kind == H5S_SCALAR || kind == H5S_SIMPLE, "{}: its shape is damaged", where);
  std::vector<hsize_t> extents(static_cast<std::size_t>(H5Sget_simple_extent_ndims(space.get())));
  (void)H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr);
  return extents;
}

void check_storage(hid_t dataset, const std::string& where) {
  const Hdf5Handle creation(H5Dget_create_plist(dataset), H5Pclose);
  require<CheckpointError>(creation.valid() && H5Pget_layout(creation.get()) == H5D_CONTIGUOUS,
                           "{}: is not stored contiguously", where);
  require<CheckpointError>(H5Pget_nfilters(creation.get()) == 0, "{}: is filtered or compressed", where);
  require<CheckpointError>(H5Pget_external_count(creation.get()) == 0,
                           "{}: keeps its elements in another file", where);
}

// Where `bytes` bytes of the dataset are, inside a file of `file_bytes`.
Extent extent_of(hid_t dataset, std::uint64_t bytes, std::uint64_t file_bytes, const std::string& where) {
  const std::uint64_t stored = H5Dget_storage_size(dataset);
  require<CheckpointError>(stored == bytes, "{}: has {} bytes of storage; its shape takes {}", where, stored,
                           bytes);
  if (bytes == 0) return {};
  const std::uint64_t offset = H5Dget_offset(dataset);
  require<CheckpointError>(
      offset != HADDR_UNDEF && offset <= file_bytes && bytes <= file_bytes - offset,
      "{}: its bytes reach past the end of the file, which has {}; it has been truncated", where, file_bytes);
  return {offset, bytes};
}

std::string read_manifest(const std::filesystem::path& path, const File& file, hid_t root) {
  const std::string where = fmt::format("{}: the manifest", path.string());
  const Hdf5Handle dataset = open_object(root, "manifest", H5I_DATASET, where);
  check_type(dataset.get(), DType::u8, where);
  check_storage(dataset.get(), where);
  const std::vector<hsize_t> shape = shape_of(dataset.get(), where);
  require<CheckpointError>(shape.size() == 1 && shape[0] <= kMaxManifestBytes,
                           "{}: expected a list of at most {} bytes", where, kMaxManifestBytes);
  const Extent extent = extent_of(dataset.get(), shape[0], file.size(), where);
  std::string json(extent.bytes, '\0');
  file.read(extent.offset, std::as_writable_bytes(std::span(json)));
  const std::uint32_t found = crc32c(std::as_bytes(std::span(json)));
  const std::optional<std::int64_t> expected = read_integer_attribute(dataset.get(), "crc32c");
  require<CheckpointError>(expected == found, "{}: its checksum does not match; the file is damaged", where);
  return json;
}

void check_version(const std::filesystem::path& path, hid_t root) {
  require<CheckpointError>(has_attribute(root, "format", kCheckpointFormat),
                           "{}: is an HDF5 file, but not a checkpoint", path.string());
  const std::optional<std::int64_t> version = read_integer_attribute(root, "format_version");
  require<CheckpointError>(version.has_value(), "{}: has no format version; the file is damaged",
                           path.string());
  require<CheckpointError>(*version == kCheckpointVersion,
                           "{}: has format version {}, and this program reads version {}; use the version of "
                           "Annulus that wrote it, or a later one",
                           path.string(), *version, kCheckpointVersion);
}

void check_disjoint(const std::filesystem::path& path, std::span<const TensorRecord> tensors) {
  std::vector<const TensorRecord*> by_offset;
  for (const TensorRecord& record : tensors)
    if (record.bytes() > 0) by_offset.push_back(&record);
  std::sort(by_offset.begin(), by_offset.end(),
            [](const TensorRecord* a, const TensorRecord* b) { return a->offset < b->offset; });
  for (std::size_t i = 1; i < by_offset.size(); ++i)
    require<CheckpointError>(by_offset[i - 1]->offset + by_offset[i - 1]->bytes() <= by_offset[i]->offset,
                             "{}: shares bytes with tensor \"{}\"", describe(path, by_offset[i]->name),
                             by_offset[i - 1]->name);
}

struct Groups {
  Hdf5Handle model, optimizer, training;

  hid_t of(TensorRole role) const {
    return role == TensorRole::optimizer_state ? optimizer.get() : model.get();
  }
};

Groups open_groups(const std::filesystem::path& path, hid_t root) {
  const auto open = [&](const char* name) {
    return open_object(root, name, H5I_GROUP, fmt::format("{}: group {}", path.string(), name));
  };
  return {open("model"), open("optimizer"), open("training")};
}

void check_tensor(const TensorRecord& record, hid_t group, std::uint64_t file_bytes,
                  const std::string& where) {
  const Hdf5Handle dataset = open_object(group, link_name(record.name), H5I_DATASET, where);
  check_type(dataset.get(), record.dtype, where);
  check_storage(dataset.get(), where);
  require<CheckpointError>(std::ranges::equal(shape_of(dataset.get(), where), record.shape),
                           "{}: its shape is not the one in the manifest", where);
  const Extent extent = extent_of(dataset.get(), record.bytes(), file_bytes, where);
  require<CheckpointError>(extent.offset == record.offset,
                           "{}: starts at byte {}, and the manifest says {}; the file has been rewritten by "
                           "another program",
                           where, extent.offset, record.offset);
}

// The first difference between a tensor's attributes and its record, or empty.
std::string attribute_difference(hid_t dataset, const TensorRecord& record) {
  const std::array<std::pair<const char*, std::string_view>, 7> texts = {
      {{"name", record.name},
       {"role", name_of(record.role)},
       {"of", record.of},
       {"device", record.device},
       {"host", record.provenance.host},
       {"device_name", record.provenance.device_name},
       {"device_uuid", record.provenance.device_uuid}}};
  for (const auto& [name, text] : texts)
    if (!has_attribute(dataset, name, text)) return name;
  if (!has_attribute(dataset, "rank", std::int64_t{record.provenance.rank})) return "rank";
  if (!has_attribute(dataset, "crc32c", std::int64_t{record.crc32c})) return "crc32c";
  return {};
}

}  // namespace

Manifest read_structure(const std::filesystem::path& path, const File& file) {
  const Hdf5Session session;
  const Hdf5Handle root = open_file(path, file);
  check_version(path, root.get());
  Manifest manifest = parse_manifest(path, read_manifest(path, file, root.get()));

  const Groups groups = open_groups(path, root.get());
  std::size_t optimizer_tensors = 0;
  const std::uint64_t file_bytes = file.size();
  for (const TensorRecord& record : manifest.tensors) {
    check_tensor(record, groups.of(record.role), file_bytes, describe(path, record.name));
    if (record.role == TensorRole::optimizer_state) ++optimizer_tensors;
  }
  // Nothing but what has been looked at: model, optimizer, training and manifest, and what is in them.
  check_link_count(root.get(), 4, path.string());
  check_link_count(groups.model.get(), manifest.tensors.size() - optimizer_tensors,
                   fmt::format("{}: group model", path.string()));
  check_link_count(groups.optimizer.get(), optimizer_tensors,
                   fmt::format("{}: group optimizer", path.string()));
  check_link_count(groups.training.get(), 0, fmt::format("{}: group training", path.string()));
  check_disjoint(path, manifest.tensors);
  return manifest;
}

void verify_attributes(const std::filesystem::path& path, const File& file, const Manifest& manifest) {
  const Hdf5Session session;
  const Hdf5Handle root = open_file(path, file);
  const Groups groups = open_groups(path, root.get());
  require<CheckpointError>(has_attribute(root.get(), "engine_version", manifest.engine_version),
                           "{}: attribute \"engine_version\" is not what the manifest says", path.string());
  for (const auto& [name, attribute] : manifest.attributes)
    std::visit(
        [&](const auto& value) {
          require<CheckpointError>(has_attribute(groups.training.get(), name.c_str(), value),
                                   "{}: attribute \"{}\" of training is not what the manifest says",
                                   path.string(), name);
        },
        attribute);
  for (const TensorRecord& record : manifest.tensors) {
    const std::string where = describe(path, record.name);
    const Hdf5Handle dataset =
        open_object(groups.of(record.role), link_name(record.name), H5I_DATASET, where);
    const std::string difference = attribute_difference(dataset.get(), record);
    require<CheckpointError>(difference.empty(), "{}: attribute \"{}\" is not what the manifest says", where,
                             difference);
  }
}

}  // namespace annulus
