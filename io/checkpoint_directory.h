// A directory of checkpoints: step-000001234.h5, ..., and the text file `latest`, which holds the name of
// the newest one that every rank knows to be complete.
//
// One process writes to a directory at a time; any number may read. The order of a save is
//
//   publish(step, write)    temporary file, close, validate, fsync, rename, fsync the directory
//   barrier                 the caller's: nobody reads the file before it
//   commit_latest(step)     moves `latest`
//   prune(keep)             removes the oldest, never the one that `latest` names
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace annulus {

class CheckpointDirectory {
 public:
  /// Touches nothing.
  explicit CheckpointDirectory(std::filesystem::path directory);

  const std::filesystem::path& path() const { return directory_; }

  /// Creates the directory if need be and proves with a probe file that this process can write there.
  /// Throws FileError that says what to do. Call it before training starts.
  void check_writable() const;

  /// DIRECTORY/step-000001234.h5.
  std::filesystem::path file_of(std::int64_t step) const;

  /// Makes `write` write a checkpoint to the path it is given and publishes that file as file_of(step),
  /// replacing an earlier one. Removes temporary files of dead writers first. Whatever throws, the
  /// temporary file is gone and older checkpoints are as they were. Returns file_of(step).
  std::filesystem::path publish(std::int64_t step,
                                const std::function<void(const std::filesystem::path&)>& write) const;

  /// Points `latest` at file_of(step).
  void commit_latest(std::int64_t step) const;

  /// Removes complete checkpoints older than the newest `keep` (at least 1). Files that do not open as
  /// complete checkpoints are not counted and not removed.
  void prune(std::size_t keep) const;

  /// What `latest` names, if it is there.
  std::optional<std::filesystem::path> latest() const;

  /// Steps that have a file, newest first.
  std::vector<std::int64_t> steps() const;

  struct Search {
    std::optional<std::filesystem::path> path;  ///< the newest checkpoint that verifies
    std::vector<std::string> skipped;           ///< why newer ones do not, one line each
  };

  /// Reads and verifies files from the newest on. A missing directory holds none.
  Search newest_verified() const;

 private:
  std::filesystem::path directory_;
};

}  // namespace annulus
