#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/base/error.h"

namespace annulus {
namespace {

const char* advice(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "; free some space or choose another directory";
    case EFBIG:
      return "; raise the file size limit (ulimit -f) or choose another file system";
    case EACCES:
    case EPERM:
    case EROFS:
      return "; change the permissions or choose another directory";
    default:
      return "";
  }
}

}  // namespace

void fail_file(const std::filesystem::path& path, const char* action, int error) {
  fail<FileError>("{}: cannot {}: {}{}", path.string(), action, std::generic_category().message(error),
                  advice(error));
}

File::File(int descriptor, std::filesystem::path path) : descriptor_(descriptor), path_(std::move(path)) {}

File File::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a named pipe must not wait for its writer. It means nothing for regular files.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail_file(path, "open", errno);
  File file(descriptor, path);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) fail_file(path, "look at it", errno);
  require<FileError>(S_ISREG(status.st_mode), "{}: expected a regular file", path.string());
  return file;
}

File File::create(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) fail_file(path, "create", errno);
  return File(descriptor, path);
}

File::~File() {
  if (descriptor_ >= 0) (void)::close(descriptor_);
}

File::File(File&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

std::uint64_t File::size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) fail_file(path_, "look at it", errno);
  return static_cast<std::uint64_t>(status.st_size);
}

void File::read(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_file(path_, "read", errno);
    require<FileError>(got > 0, "{}: ends at byte {}, where {} more were expected; it has been truncated",
                       path_.string(), offset, out.size());
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

void File::write(std::uint64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_file(path_, "write", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
}

void File::reserve(std::uint64_t bytes) const {
  if (bytes == 0) return;
  int status = -1;
  do {
    status = ::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes));
  } while (status != 0 && errno == EINTR);
  if (status != 0 && errno != EOPNOTSUPP && errno != ENOSYS) fail_file(path_, "reserve space", errno);
}

void File::sync() const {
  if (::fsync(descriptor_) != 0) fail_file(path_, "make it durable (fsync)", errno);
}

void File::close() {
  // The descriptor is gone whatever close() returns, so it is never closed twice.
  const int descriptor = std::exchange(descriptor_, -1);
  if (descriptor >= 0 && ::close(descriptor) != 0 && errno != EINTR) fail_file(path_, "close", errno);
}

void sync_directory(const std::filesystem::path& directory) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_file(directory, "open the directory", errno);
  const int status = ::fsync(descriptor);
  const int error = errno;
  (void)::close(descriptor);
  // Some file systems cannot sync a directory, and say so; there is nothing more to be done on them.
  if (status != 0 && error != EINVAL) fail_file(directory, "make the directory durable (fsync)", error);
}

}  // namespace annulus
