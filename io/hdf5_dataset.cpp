#include "io/hdf5_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "io/hdf5_handle.h"
#include "io/in_memory_dataset.h"

namespace annulus {
namespace {

/// Deflate cannot expand its input by more than this (zlib's technical notes say 1032:1).
constexpr std::size_t kMaxExpansion = 1032;

constexpr const char* kRule =
    "a dataset file holds `images` and `labels`, at its root or in groups `train` and `test`";

Hdf5Handle open_file(const std::string& file) {
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(file, error);
  require<DataError>(!error && regular, "{}: {}; check the path of the dataset", file,
                     error ? error.message() : "not a file");
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  (void)H5Pset_file_locking(access.get(), false, true);  // locks fail on some network mounts
  Hdf5Handle handle(H5Fopen(file.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
  require<DataError>(handle.valid(), "{}: not an HDF5 file, or a damaged one; {}", file, kRule);
  return handle;
}

/// Whether the group `parent` has a link `name`. Throws DataError if it leads elsewhere: to another place by
/// name or to another file.
bool has_hard_link(const std::string& file, const Hdf5Handle& parent, const std::string& name) {
  if (H5Lexists(parent.get(), name.c_str(), H5P_DEFAULT) <= 0) return false;
  H5L_info_t info{};
  const herr_t status = H5Lget_info(parent.get(), name.c_str(), &info, H5P_DEFAULT);
  require<DataError>(status >= 0 && info.type == H5L_TYPE_HARD,
                     "{}: `{}` is a soft or external link; store the data itself there", file, name);
  return true;
}

/// A dataset of a file, checked to be no larger than what the file stores of it.
class StoredArray {
 public:
  StoredArray(const std::string& file, const Hdf5Handle& group, const std::string& name)
      : label_(fmt::format("{}: `{}`", file, name)) {
    require<DataError>(has_hard_link(file, group, name), "{} is missing; {}", label_, kRule);
    dataset_ = Hdf5Handle(H5Dopen2(group.get(), name.c_str(), H5P_DEFAULT), H5Dclose);
    require<DataError>(dataset_.valid(), "{} is not a dataset; {}", label_, kRule);
    type_ = Hdf5Handle(H5Dget_type(dataset_.get()), H5Tclose);
    read_extents();
    check_storage(file);
  }

  const std::string& label() const { return label_; }
  const std::vector<std::size_t>& extents() const { return extents_; }
  std::string extents_text() const { return fmt::format("[{}]", fmt::join(extents_, ", ")); }

  bool is_integer() const {
    return H5Tget_class(type_.get()) == H5T_INTEGER && H5Tget_size(type_.get()) <= 8;
  }
  bool is_u8() const {
    return is_integer() && H5Tget_size(type_.get()) == 1 && H5Tget_sign(type_.get()) == H5T_SGN_NONE;
  }

  /// All elements, converted to the native type `type`, which is T.
  template <class T>
  std::vector<T> read(hid_t type) const {
    std::vector<T> elements(saturating_product(extents_));
    require<DataError>(H5Dread(dataset_.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, elements.data()) >= 0,
                       "{} cannot be read: the file is truncated or damaged; get it again", label_);
    return elements;
  }

 private:
  void read_extents() {
    const Hdf5Handle space(H5Dget_space(dataset_.get()), H5Sclose);
    const int rank = H5Sget_simple_extent_ndims(space.get());
    require<DataError>(rank > 0, "{} is a scalar or empty; {}", label_, kRule);
    std::vector<hsize_t> extents(static_cast<std::size_t>(rank));
    (void)H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr);
    extents_.assign(extents.begin(), extents.end());
    require<DataError>(saturating_product(extents_) > 0, "{} holds nothing: its extents are {}", label_,
                       extents_text());
  }

  void check_storage(const std::string& file) const {
    const Hdf5Handle properties(H5Dget_create_plist(dataset_.get()), H5Pclose);
    const H5D_layout_t layout = H5Pget_layout(properties.get());
    require<DataError>((layout == H5D_COMPACT || layout == H5D_CONTIGUOUS || layout == H5D_CHUNKED) &&
                           H5Pget_external_count(properties.get()) == 0,
                       "{} keeps its data elsewhere (external or virtual storage); store it in the file",
                       label_);
    const int filters = H5Pget_nfilters(properties.get());
    for (int i = 0; i < filters; ++i) {
      unsigned flags = 0, configuration = 0;
      std::size_t values = 0;
      const H5Z_filter_t filter = H5Pget_filter2(properties.get(), static_cast<unsigned>(i), &flags, &values,
                                                 nullptr, 0, nullptr, &configuration);
      require<DataError>(filter == H5Z_FILTER_DEFLATE,
                         "{} uses HDF5 filter {}; only deflate (gzip) is read: store it without others",
                         label_, static_cast<int>(filter));
    }

    // Neither the elements nor the library's buffer for one chunk may be larger than what the stored bytes
    // can make.
    const std::size_t size = H5Tget_size(type_.get());
    std::vector<std::size_t> extents = extents_;
    extents.push_back(size);
    std::size_t announced = saturating_product(extents);
    if (layout == H5D_CHUNKED) {
      std::vector<hsize_t> chunk(extents_.size());
      (void)H5Pget_chunk(properties.get(), static_cast<int>(chunk.size()), chunk.data());
      std::vector<std::size_t> chunk_extents(chunk.begin(), chunk.end());
      chunk_extents.push_back(size);
      announced = std::max(announced, saturating_product(chunk_extents));
    }
    const std::size_t stored = H5Dget_storage_size(dataset_.get());
    require<DataError>(
        stored <= std::filesystem::file_size(file) && announced / (filters > 0 ? kMaxExpansion : 1) <= stored,
        "{} announces {} elements of {} bytes, but the file stores only {} bytes of it; the file is "
        "truncated or was not written to the end, get it again",
        label_, extents_text(), size, std::min<std::size_t>(stored, std::filesystem::file_size(file)));
  }

  std::string label_;
  Hdf5Handle dataset_;
  Hdf5Handle type_;
  std::vector<std::size_t> extents_;
};

/// The group of `split` in a file by the rule of the header; nothing if `at_root` is false and there is no
/// group.
std::optional<Hdf5Handle> find_group(const std::string& file, const Hdf5Handle& handle, Split split,
                                     bool at_root) {
  const std::string name(name_of(split));
  const bool grouped = has_hard_link(file, handle, name);
  if (!grouped && !at_root) return std::nullopt;
  Hdf5Handle group(H5Gopen2(handle.get(), grouped ? name.c_str() : "/", H5P_DEFAULT), H5Gclose);
  require<DataError>(group.valid(), "{}: `{}` is not a group; {}", file, name, kRule);
  return group;
}

struct Place {
  const std::string& file;
  bool at_root;
};

Place place_of(const Hdf5Source& source, Split split) {
  if (split == Split::train) return {source.file, true};
  if (source.test_file.empty()) return {source.file, false};
  return {source.test_file, true};
}

/// Images as [samples, height, width, channels].
struct Images {
  std::vector<std::size_t> extents;
  std::vector<std::uint8_t> pixels;
};

Images read_images(const StoredArray& stored) {
  Images images{stored.extents(), {}};
  if (images.extents.size() == 3) images.extents.push_back(1);
  require<DataError>(
      stored.is_u8() && images.extents.size() == 4,
      "{} must be u8 [samples, height, width] or [samples, height, width, channels]; found {} {}",
      stored.label(), stored.is_u8() ? "u8" : "another type", stored.extents_text());
  images.pixels = stored.read<std::uint8_t>(H5T_NATIVE_UINT8);
  return images;
}

}  // namespace

std::unique_ptr<Dataset> open_hdf5(const Hdf5Source& source, Split split) {
  const Hdf5Session session;
  const Place place = place_of(source, split);
  const Hdf5Handle handle = open_file(place.file);
  const std::optional<Hdf5Handle> group = find_group(place.file, handle, split, place.at_root);
  require<DataError>(group.has_value(),
                     "{}: there is no group `test` in it; add one, or name another file: hdf5:FILE,test=FILE",
                     place.file);
  const StoredArray stored(place.file, *group, "images");
  Images images = read_images(stored);
  const StoredArray stored_labels(place.file, *group, "labels");
  require<DataError>(stored_labels.is_integer() && stored_labels.extents().size() == 1,
                     "{} must be integers [samples]; found {} {}", stored_labels.label(),
                     stored_labels.is_integer() ? "integers" : "another type", stored_labels.extents_text());
  require<DataError>(stored_labels.extents()[0] == images.extents[0],
                     "{}: {} labels, but {} images; there must be one label for each image", place.file,
                     stored_labels.extents()[0], images.extents[0]);
  std::vector<std::int32_t> labels =
      check_labels(stored_labels.read<std::int64_t>(H5T_NATIVE_INT64), source.classes, stored_labels.label(),
                   "correct it, or say classes=N in the dataset's spec if it has more");

  ChannelStatistics statistics;
  if (split == Split::train) {
    statistics = channel_statistics(images.pixels, images.extents[3]);
  } else {
    const Hdf5Handle train_file = open_file(source.file);
    const StoredArray train(source.file, *find_group(source.file, train_file, Split::train, true), "images");
    const Images train_images = read_images(train);
    require<DataError>(
        std::equal(images.extents.begin() + 1, images.extents.end(), train_images.extents.begin() + 1),
        "{} of the test split are {}, but those of the training split are {}; all but the number of "
        "samples must be equal",
        stored.label(), stored.extents_text(), train.extents_text());
    statistics = channel_statistics(train_images.pixels, images.extents[3]);
  }
  DatasetInfo info{.name = fmt::format("{}, {} split", source.name, name_of(split)),
                   .size = images.extents[0],
                   .height = images.extents[1],
                   .width = images.extents[2],
                   .channels = images.extents[3],
                   .classes = source.classes,
                   .mean = std::move(statistics.mean),
                   .stddev = std::move(statistics.stddev)};
  return std::make_unique<InMemoryDataset>(std::move(info), std::move(images.pixels), std::move(labels));
}

bool has_hdf5_test_split(const Hdf5Source& source) {
  if (!source.test_file.empty()) return true;
  const Hdf5Session session;
  return has_hard_link(source.file, open_file(source.file), "test");
}

}  // namespace annulus
