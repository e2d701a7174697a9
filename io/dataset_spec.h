// Takes dataset specs apart: KIND:LOCATION,option=value,...
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace annulus {

enum class DatasetKind { fashion_mnist, idx, cifar10, hdf5, synthetic };

struct DatasetSpec {
  std::string text;  ///< as the user wrote it
  DatasetKind kind = DatasetKind::synthetic;
  std::string location;                        ///< folder, file or, for synthetic data, HxWxC
  std::map<std::string, std::string> options;  ///< names are checked, values are not

  struct Limits {
    std::uint64_t least = 0;
    std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  };

  /// The whole number that option `name` gives; nothing if the option is not there. Throws ConfigError if it
  /// is not a number within `limits`.
  std::optional<std::uint64_t> number(const std::string& name, Limits limits) const;
};

/// Reads a spec. A bare path is looked at to find out what it holds. Throws ConfigError that lists the forms
/// and suggests the nearest kind or option if the spec is wrong, and DataError if nothing is known about a
/// path.
DatasetSpec parse_dataset_spec(std::string_view text);

/// A whole decimal number, nothing else; empty if `text` is not one or does not fit.
std::optional<std::uint64_t> parse_number(std::string_view text);

}  // namespace annulus
