// Files that appear whole or not at all: written under a temporary name in the same directory, fsynced,
// renamed, directory fsynced.
#pragma once

#include <filesystem>
#include <string_view>

namespace annulus {

/// One file in the making. Whoever opens `destination` sees the old file or the new one, never a part,
/// whatever happens to the writer.
class AtomicFile {
 public:
  /// Creates nothing yet.
  explicit AtomicFile(std::filesystem::path destination);
  /// Removes the temporary file unless publish() has succeeded.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Where to write: DESTINATION.tmp-HOST-PID.
  const std::filesystem::path& temporary() const { return temporary_; }

  /// fsync, rename over the destination, fsync the directory. The file must be closed by its writer.
  /// Throws FileError.
  void publish();

 private:
  std::filesystem::path destination_;
  std::filesystem::path temporary_;
  bool published_ = false;
};

/// A small text file, replaced atomically and durably.
void write_file_atomically(const std::filesystem::path& destination, std::string_view text);

/// Removes temporary files that AtomicFile left in `directory` when their writer was killed: those of a
/// process of this host that is gone, those of this very process (so call it before making a new one, from
/// the only thread that writes there), and any that nobody has written to for an hour.
void remove_stale_temporaries(const std::filesystem::path& directory);

}  // namespace annulus
