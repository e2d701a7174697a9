// A file descriptor whose failures are typed errors that name the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace annulus {

/// Owns an open file. Move-only. Every call throws FileError with the path and the system's reason;
/// positions are explicit, so that one File serves several threads.
class File {
 public:
  File() = default;
  /// For reading. Refuses anything but a regular file.
  static File open(const std::filesystem::path& path);
  /// For writing, and only if there is no such file yet.
  static File create(const std::filesystem::path& path);
  /// Takes over a descriptor; `path` is what messages call it.
  File(int descriptor, std::filesystem::path path);

  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  int descriptor() const { return descriptor_; }
  std::uint64_t size() const;
  /// All of `out`; a shorter file is an error.
  void read(std::uint64_t offset, std::span<std::byte> out) const;
  void write(std::uint64_t offset, std::span<const std::byte> bytes) const;
  /// Reserves space, so that a full disk shows before anything is written. File systems that cannot
  /// reserve are left alone.
  void reserve(std::uint64_t bytes) const;
  /// Returns when the contents are on the disk.
  void sync() const;
  /// Reports what the destructor would have to ignore.
  void close();

 private:
  int descriptor_ = -1;
  std::filesystem::path path_;
};

/// Throws FileError: PATH: cannot ACTION: what the system calls `error` (an errno), and what to do about it.
[[noreturn]] void fail_file(const std::filesystem::path& path, const char* action, int error);

/// Makes creations, renames and removals in `directory` durable.
void sync_directory(const std::filesystem::path& directory);

}  // namespace annulus
