#include "io/dataset_spec.h"

#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "core/base/nearest_name.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;

struct Kind {
  std::string_view name;
  DatasetKind kind;
  bool has_location;
  std::array<std::string_view, 3> options;  // unused ones are empty
};

constexpr Kind kKinds[] = {
    {"fashion-mnist", DatasetKind::fashion_mnist, false, {}},
    {"idx", DatasetKind::idx, true, {"classes"}},
    {"cifar10", DatasetKind::cifar10, true, {}},
    {"hdf5", DatasetKind::hdf5, true, {"classes", "test"}},
    {"synthetic", DatasetKind::synthetic, true, {"classes", "samples", "seed"}},
};

constexpr std::string_view kForms =
    "write fashion-mnist, idx:DIR[,classes=N], cifar10:DIR, hdf5:FILE[,test=FILE][,classes=N], "
    "synthetic:HxWxC[,classes=N][,samples=N][,seed=N], or the path of a folder or file of one of these kinds";

const Kind* find_kind(std::string_view name) {
  for (const Kind& kind : kKinds)
    if (kind.name == name) return &kind;
  return nullptr;
}

/// Where the first ",name=" begins, so that a path may hold commas; the end of the text if there is none.
std::size_t begin_of_options(std::string_view text) {
  for (std::size_t comma = text.find(','); comma != text.npos; comma = text.find(',', comma + 1)) {
    const std::size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz-_", comma + 1);
    if (end != text.npos && end > comma + 1 && text[end] == '=') return comma;
  }
  return text.size();
}

void parse_options(std::string_view text, const Kind& kind, DatasetSpec& spec) {
  while (!text.empty()) {
    text.remove_prefix(1);  // the comma
    const std::string_view option = text.substr(0, begin_of_options(text));
    text.remove_prefix(option.size());
    const std::size_t equals = option.find('=');
    const std::string_view name = option.substr(0, equals);
    std::vector<std::string_view> known;
    for (const std::string_view candidate : kind.options)
      if (!candidate.empty()) known.push_back(candidate);
    bool found = false;
    for (const std::string_view candidate : known) found = found || candidate == name;
    require<ConfigError>(found, "dataset \"{}\": {} data has no option \"{}\"{}; {}", spec.text, kind.name,
                         name, did_you_mean(name, known), kForms);
    const bool inserted = spec.options.emplace(name, option.substr(equals + 1)).second;
    require<ConfigError>(inserted, "dataset \"{}\": option \"{}\" is given twice", spec.text, name);
  }
}

bool exists_plain_or_gz(const fs::path& file) {
  std::error_code ignored;
  return fs::exists(file, ignored) || fs::exists(file.string() + ".gz", ignored);
}

bool starts_like_hdf5(const fs::path& file) {
  constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
  std::array<char, kSignature.size()> begin{};
  std::ifstream(file, std::ios::binary).read(begin.data(), begin.size());
  return std::string_view(begin.data(), begin.size()) == kSignature;
}

DatasetKind recognise(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    if (exists_plain_or_gz(path / "train-images-idx3-ubyte")) return DatasetKind::idx;
    if (fs::exists(path / "data_batch_1.bin", ignored)) return DatasetKind::cifar10;
    fail<DataError>(
        "{}: no dataset is known in this folder; expected train-images-idx3-ubyte (or .gz) for IDX files or "
        "data_batch_1.bin for CIFAR-10's binary version; check the path",
        path.string());
  }
  require<DataError>(fs::exists(path, ignored),
                     "{}: there is no such file or folder; check the path of the dataset", path.string());
  require<DataError>(
      starts_like_hdf5(path),
      "{}: not an HDF5 file; a dataset in a single file must be one, with u8 `images` and integer "
      "`labels`; other kinds are named by their folder",
      path.string());
  return DatasetKind::hdf5;
}

}  // namespace

std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> DatasetSpec::number(const std::string& name, Limits limits) const {
  const auto found = options.find(name);
  if (found == options.end()) return std::nullopt;
  const std::optional<std::uint64_t> value = parse_number(found->second);
  require<ConfigError>(value && *value >= limits.least && *value <= limits.most,
                       "dataset \"{}\": {} must be a whole number from {} to {}, not \"{}\"", text, name,
                       limits.least, limits.most, found->second);
  return value;
}

DatasetSpec parse_dataset_spec(std::string_view text) {
  DatasetSpec spec;
  spec.text = text;
  const std::size_t options = begin_of_options(text);
  const std::string_view head = text.substr(0, options);
  const std::size_t colon = head.find(':');
  const std::string_view name = head.substr(0, colon);
  if (const Kind* kind = find_kind(name)) {
    const std::string_view location = colon == head.npos ? "" : head.substr(colon + 1);
    require<ConfigError>(location.empty() != kind->has_location, "dataset \"{}\": \"{}\" {}; {}", text, name,
                         kind->has_location ? "must be followed by a colon and a location" : "stands alone",
                         kForms);
    spec.kind = kind->kind;
    spec.location = location;
    parse_options(text.substr(options), *kind, spec);
    return spec;
  }
  std::error_code ignored;
  if (text.find('/') != text.npos || fs::exists(fs::path(text), ignored)) {
    spec.kind = recognise(fs::path(text));
    spec.location = text;
    return spec;
  }
  std::vector<std::string_view> names;
  for (const Kind& kind : kKinds) names.push_back(kind.name);
  fail<ConfigError>("dataset \"{}\" is unknown{}; {}", text, did_you_mean(name, names), kForms);
}

}  // namespace annulus
