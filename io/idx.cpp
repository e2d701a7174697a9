#include "io/idx.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/base/error.h"

namespace annulus {
namespace {

/// Reads a file through zlib, which passes plain files through as they are.
class GzipReader {
 public:
  explicit GzipReader(const std::string& file) : path_(file) {
    errno = 0;
    file_ = gzopen(file.c_str(), "rb");
    require<DataError>(file_ != nullptr, "{}: cannot open it: {}; check the path and its permissions", path_,
                       std::strerror(errno));
    (void)gzbuffer(file_, 1u << 18);
  }
  ~GzipReader() { (void)gzclose_r(file_); }
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  /// Reads up to `bytes` bytes; fewer only where the contents end, be it properly or cut short.
  std::size_t read(std::uint8_t* destination, std::size_t bytes) {
    std::size_t done = 0;
    while (done < bytes) {
      const auto ask = static_cast<unsigned>(std::min<std::size_t>(bytes - done, 1u << 30));
      const int got = gzread(file_, destination + done, ask);
      int code = Z_OK;
      const char* const text = gzerror(file_, &code);
      // A gzip stream that is cut short reports Z_BUF_ERROR along with its last bytes.
      require<DataError>(code == Z_OK || code == Z_STREAM_END,
                         "{}: cannot read it: {}; if it is damaged, get it again", path_,
                         code == Z_ERRNO ? std::strerror(errno) : reason(text));
      if (got <= 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

 private:
  /// What zlib says is "PATH: REASON".
  std::string_view reason(std::string_view text) const {
    return text.starts_with(path_ + ": ") ? text.substr(path_.size() + 2) : text;
  }

  std::string path_;
  gzFile file_ = nullptr;
};

std::uint32_t big_endian(const std::uint8_t* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 |
         bytes[3];
}

/// FILE or, if only that exists, FILE.gz.
std::string find_file(const std::string& folder, const std::string& name) {
  const std::filesystem::path plain = std::filesystem::path(folder) / name;
  std::error_code ignored;
  if (std::filesystem::exists(plain, ignored)) return plain.string();
  std::string gzipped = plain.string() + ".gz";
  require<DataError>(
      std::filesystem::exists(gzipped, ignored),
      "{}: there is no such file, plain or .gz; an IDX dataset has the files train-images-idx3-ubyte, "
      "train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte; check the folder",
      plain.string());
  return gzipped;
}

struct Images {
  std::string file;
  IdxArray array;
};

Images read_images(const std::string& folder, Split split) {
  Images images;
  images.file =
      find_file(folder, split == Split::train ? "train-images-idx3-ubyte" : "t10k-images-idx3-ubyte");
  images.array = read_idx(images.file, 3);
  require<DataError>(!images.array.bytes.empty(), "{}: holds no pixels: its extents are {}; get it again",
                     images.file, fmt::join(images.array.extents, " x "));
  return images;
}

}  // namespace

IdxArray read_idx(const std::string& file, std::size_t rank) {
  GzipReader reader(file);
  std::array<std::uint8_t, 4> magic{};
  const std::size_t magic_bytes = reader.read(magic.data(), magic.size());
  const std::size_t expected = 0x800 + rank;
  require<DataError>(
      magic_bytes == magic.size() && big_endian(magic.data()) == expected,
      "{}: not an IDX file of u8 with {} extents: it should begin with the magic number {:#010x}, "
      "but {}; check that this is the right file, or get it again",
      file, rank, expected,
      magic_bytes == magic.size() ? fmt::format("begins with {:#010x}", big_endian(magic.data()))
                                  : fmt::format("holds only {} bytes", magic_bytes));
  IdxArray array;
  for (std::size_t axis = 0; axis < rank; ++axis) {
    std::array<std::uint8_t, 4> extent{};
    require<DataError>(reader.read(extent.data(), extent.size()) == extent.size(),
                       "{}: truncated: it ends inside its header; get it again", file);
    array.extents.push_back(big_endian(extent.data()));
  }

  const std::size_t announced = saturating_product(array.extents);
  constexpr std::size_t kFirstChunk = 1u << 20;
  std::size_t found = 0;
  while (found < announced) {
    // Memory at most doubles at a time, so a header cannot ask for more than the file goes on to fill.
    const std::size_t wanted = std::min(announced, std::max(kFirstChunk, 2 * found));
    array.bytes.resize(wanted);
    found += reader.read(array.bytes.data() + found, wanted - found);
    require<DataError>(found == wanted,
                       "{}: truncated: its header announces {} = {} bytes, but only {} follow; get it again",
                       file, fmt::join(array.extents, " x "), announced, found);
  }
  std::uint8_t more = 0;
  require<DataError>(reader.read(&more, 1) == 0,
                     "{}: too long: its header announces {} = {} bytes, but more follow; get it again", file,
                     fmt::join(array.extents, " x "), announced);
  return array;
}

std::unique_ptr<Dataset> open_idx(const IdxSource& source, Split split) {
  Images images = read_images(source.folder, split);
  const std::vector<std::size_t> extents = images.array.extents;
  const std::string labels_file =
      find_file(source.folder, split == Split::train ? "train-labels-idx1-ubyte" : "t10k-labels-idx1-ubyte");
  const IdxArray labels = read_idx(labels_file, 1);
  require<DataError>(
      labels.extents[0] == extents[0],
      "{} holds {} labels, but {} holds {} images; they must be of the same dataset: get both again",
      labels_file, labels.extents[0], images.file, extents[0]);

  ChannelStatistics statistics;
  if (source.statistics) {
    statistics = *source.statistics;
  } else if (split == Split::train) {
    statistics = channel_statistics(images.array.bytes, 1);
  } else {
    const Images train = read_images(source.folder, Split::train);
    require<DataError>(train.array.extents[1] == extents[1] && train.array.extents[2] == extents[2],
                       "{} holds images of {} x {}, but {} of {} x {}; both must be of the same dataset",
                       images.file, extents[1], extents[2], train.file, train.array.extents[1],
                       train.array.extents[2]);
    statistics = channel_statistics(train.array.bytes, 1);
  }
  DatasetInfo info{.name = fmt::format("{}, {} split", source.name, name_of(split)),
                   .size = extents[0],
                   .height = extents[1],
                   .width = extents[2],
                   .channels = 1,
                   .classes = source.classes,
                   .mean = std::move(statistics.mean),
                   .stddev = std::move(statistics.stddev)};
  const std::vector<std::int64_t> wide(labels.bytes.begin(), labels.bytes.end());
  return std::make_unique<InMemoryDataset>(
      std::move(info), std::move(images.array.bytes),
      check_labels(wide, source.classes, labels_file,
                   "get the file again, or say classes=N in the dataset's spec if it has more"));
}

}  // namespace annulus
