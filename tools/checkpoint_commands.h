// What annulus-checkpoint does. None of it needs a GPU or resolves a device: tags are only shown.
#pragma once

#include <filesystem>
#include <vector>

namespace annulus {

/// Prints what a checkpoint holds: training state, tensors, device tags and where they were written. As
/// JSON for programs, as a table for people.
void inspect_checkpoint(const std::filesystem::path& path, bool as_json);

/// Reads every byte of every file and prints one line for each: on standard output if it is whole, on
/// standard error what is wrong with it. Returns whether all are whole.
bool verify_checkpoints(const std::vector<std::filesystem::path>& paths);

/// Prints how two checkpoints differ: for every tensor whether the bits are equal or how far apart the
/// elements are, and every attribute that differs. Returns whether all is equal; device tags, provenance
/// and engine version may differ.
bool diff_checkpoints(const std::filesystem::path& first, const std::filesystem::path& second);

}  // namespace annulus
