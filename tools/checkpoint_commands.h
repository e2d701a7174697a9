// What annulus-checkpoint does. None of it needs a GPU or resolves a device: tags are only text.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace annulus {

/// Prints what a checkpoint holds: training state, tensors, device tags and where they were written. As
/// JSON for programs, as a table for people.
void inspect_checkpoint(const std::filesystem::path& path, bool as_json);

/// Reads every tensor of every file and prints one line for each: on standard output if it is whole, on
/// standard error what is wrong with it. Returns whether all are whole.
bool verify_checkpoints(const std::vector<std::filesystem::path>& paths);

/// Prints how two checkpoints differ: for every tensor whether the bits are equal or how far apart the
/// elements are, and every attribute that differs. Returns whether all is equal; device tags, provenance
/// and engine version may differ.
bool diff_checkpoints(const std::filesystem::path& first, const std::filesystem::path& second);

/// Writes the checkpoint `in` to the new file `out` with its device tags changed as `map` says (the grammar
/// of DeviceMap, without "local" and "cuda"); each tensor goes by its own tag. Elements, checksums and
/// training state stay as they are; where a tag changes, its provenance goes. Holds all tensors in memory.
/// Throws ConfigError for a map that does not parse or cover a tag, CheckpointError if `in` is damaged,
/// FileError if `out` exists or cannot be written.
void remap_checkpoint(const std::filesystem::path& in, const std::filesystem::path& out,
                      std::string_view map);

/// Writes the parameters and buffers of the checkpoint `in`, by name, to the new file `out`, which ends in
/// .safetensors (all dtypes) or .npz (not bf16, up to 4 GiB). Bytes are those of the checkpoint, whose
/// checksums are compared. Holds one tensor in memory. Throws ConfigError for another ending, CheckpointError
/// if `in` is damaged or the format cannot hold it, FileError if `out` exists or cannot be written.
void export_model(const std::filesystem::path& in, const std::filesystem::path& out);

}  // namespace annulus
