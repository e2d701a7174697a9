// The manifest: the part of a checkpoint that lists every tensor and attribute, under a checksum of its
// own, so that completeness is proved. JSON text; docs/checkpoint-format.md names the keys.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"

namespace annulus {

inline constexpr std::string_view kCheckpointFormat = "annulus-checkpoint";
inline constexpr std::int64_t kCheckpointVersion = 1;

struct Manifest {
  std::string engine_version;
  std::vector<TensorRecord> tensors;
  Attributes attributes;
};

/// Throws CheckpointError that names `path` and the tensor if the records break a rule of the format:
/// names, roles, ranks, sizes, device tags. Both sides call it, so nothing is written that is not read.
void check_records(const std::filesystem::path& path, std::span<const TensorRecord> tensors);

/// Throws CheckpointError if a name or value cannot be stored.
void check_attributes(const std::filesystem::path& path, const Attributes& attributes);

/// The JSON text. Throws CheckpointError if a string is not UTF-8.
std::string to_json(const std::filesystem::path& path, const Manifest& manifest);

/// Inverse of to_json, with everything checked that check_records and check_attributes check. Keys that it
/// does not know are ignored.
Manifest parse_manifest(const std::filesystem::path& path, std::string_view json);

/// The name of a tensor's dataset inside its group: the tensor's name, with '%' as %25, '/' as %2F and a
/// lone '.' as %2E, the three that HDF5 paths or this rule would take for something else.
std::string link_name(std::string_view tensor_name);

/// "model" or "optimizer".
std::string_view group_of(TensorRole role);

/// For messages: PATH: tensor "NAME".
std::string describe(const std::filesystem::path& path, std::string_view tensor_name);

}  // namespace annulus
