// What the commands that make a new file share.
#pragma once

#include <filesystem>
#include <functional>

namespace annulus {

/// Calls `write` with the path of a temporary file to create and close, and publishes that as `path`: whole
/// or not at all. Throws FileError if there is something at `path` already, and passes on what `write`
/// throws.
void write_new_file(const std::filesystem::path& path,
                    const std::function<void(const std::filesystem::path&)>& write);

}  // namespace annulus
