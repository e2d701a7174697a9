#include "io/dataset.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "core/base/tensor.h"
#include "io/cifar10.h"
#include "io/dataset_spec.h"
#include "io/hdf5_dataset.h"
#include "io/idx.h"
#include "io/synthetic.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;

IdxSource find_fashion_mnist(const DatasetSpec& spec) {
  std::vector<fs::path> folders;
  if (const char* data = std::getenv("ANNULUS_DATA")) folders.push_back(fs::path(data) / "fashion-mnist");
  folders.emplace_back("/usr/share/datasets/fashion-mnist");  // Debian's dataset-fashion-mnist
  if (const char* home = std::getenv("HOME"))
    folders.push_back(fs::path(home) / ".cache/annulus/fashion-mnist");
  std::string searched;
  for (const fs::path& folder : folders) {
    std::error_code ignored;
    if (fs::is_directory(folder, ignored))
      // The usual constants, so that recipes carry over.
      return {.name = spec.text,
              .folder = folder.string(),
              .classes = 10,
              .statistics = ChannelStatistics{{0.2860f}, {0.3530f}}};
    searched += fmt::format("{}{}", searched.empty() ? "" : ", ", folder.string());
  }
  fail<DataError>(
      "Fashion-MNIST was not found in {}; install the Debian package dataset-fashion-mnist, run "
      "tools/quickstart.sh, which downloads it, or set ANNULUS_DATA to the folder that holds fashion-mnist/",
      searched);
}

std::size_t classes_of(const DatasetSpec& spec) { return spec.number("classes", {1, 1u << 20}).value_or(10); }

Hdf5Source hdf5_source(const DatasetSpec& spec) {
  const auto test = spec.options.find("test");
  return {.name = spec.text,
          .file = spec.location,
          .test_file = test == spec.options.end() ? "" : test->second,
          .classes = classes_of(spec)};
}

/// Reads "HxWxC".
Shape parse_image_shape(const DatasetSpec& spec) {
  std::vector<std::size_t> extents;
  for (std::size_t begin = 0; begin <= spec.location.size() && extents.size() <= 3;) {
    const std::size_t end = std::min(spec.location.find('x', begin), spec.location.size());
    extents.push_back(parse_number(std::string_view(spec.location).substr(begin, end - begin)).value_or(0));
    begin = end + 1;
  }
  require<ConfigError>(extents.size() == 3 && std::count(extents.begin(), extents.end(), 0u) == 0,
                       "dataset \"{}\": \"{}\" is not height x width x channels; write for instance "
                       "synthetic:28x28x1",
                       spec.text, spec.location);
  return Shape(extents.data(), extents.size());
}

std::unique_ptr<Dataset> open_synthetic(const DatasetSpec& spec, Split split) {
  const Shape shape = parse_image_shape(spec);
  const std::size_t samples = spec.number("samples", {1, 0xffffffffu}).value_or(1000);
  DatasetInfo info{.name = fmt::format("{}, {} split", spec.text, name_of(split)),
                   .size = split == Split::train ? samples : (samples + 4) / 5,
                   .height = shape[0],
                   .width = shape[1],
                   .channels = shape[2],
                   .classes = classes_of(spec),
                   .mean = {},
                   .stddev = {}};
  return std::make_unique<SyntheticDataset>(std::move(info), spec.number("seed", {}).value_or(1), split);
}

}  // namespace

std::string_view name_of(Split split) { return split == Split::train ? "train" : "test"; }

std::unique_ptr<Dataset> open_dataset(std::string_view spec_text, Split split) {
  const DatasetSpec spec = parse_dataset_spec(spec_text);
  switch (spec.kind) {
    case DatasetKind::fashion_mnist:
      return open_idx(find_fashion_mnist(spec), split);
    case DatasetKind::idx:
      return open_idx(
          {.name = spec.text, .folder = spec.location, .classes = classes_of(spec), .statistics = {}}, split);
    case DatasetKind::cifar10:
      return open_cifar10(spec.text, spec.location, split);
    case DatasetKind::hdf5:
      return open_hdf5(hdf5_source(spec), split);
    case DatasetKind::synthetic:
      return open_synthetic(spec, split);
  }
  fail<ConfigError>("dataset \"{}\" is of no known kind", spec_text);
}

bool has_test_split(std::string_view spec_text) {
  const DatasetSpec spec = parse_dataset_spec(spec_text);
  return spec.kind != DatasetKind::hdf5 || has_hdf5_test_split(hdf5_source(spec));
}

}  // namespace annulus
