#include "io/atomic_file.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "io/file.h"
#include "io/host_name.h"

namespace annulus {
namespace {

constexpr std::string_view kMark = ".tmp-";

std::filesystem::path directory_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

struct Writer {
  std::string host;
  pid_t process = 0;
};

// Who makes the temporary file of this name; nothing if it is not one.
std::optional<Writer> writer_of(const std::string& name) {
  const std::size_t mark = name.rfind(kMark);
  const std::size_t dash = name.rfind('-');
  if (mark == std::string::npos || dash < mark + kMark.size()) return std::nullopt;
  Writer writer;
  writer.host = name.substr(mark + kMark.size(), dash - mark - kMark.size());
  const char* end = name.data() + name.size();
  const auto [last, error] = std::from_chars(name.data() + dash + 1, end, writer.process);
  if (error != std::errc() || last != end || writer.process <= 0) return std::nullopt;
  return writer;
}

bool is_alive(pid_t process) { return ::kill(process, 0) == 0 || errno != ESRCH; }

// Long past any pause of a writer that is still at work, and soon enough to give the space back.
constexpr std::chrono::hours kAbandoned{1};

bool is_abandoned(const std::filesystem::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) return false;
  const auto written = std::chrono::system_clock::from_time_t(status.st_mtime);
  return std::chrono::system_clock::now() - written > kAbandoned;
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path destination)
    : destination_(std::move(destination)),
      temporary_(fmt::format("{}{}{}-{}", destination_.string(), kMark, host_name(), ::getpid())) {}

AtomicFile::~AtomicFile() {
  if (!published_) (void)::unlink(temporary_.c_str());
}

void AtomicFile::publish() {
  File::open(temporary_).sync();
  if (std::rename(temporary_.c_str(), destination_.c_str()) != 0)
    fail_file(destination_, "put the new file in its place (rename)", errno);
  published_ = true;
  sync_directory(directory_of(destination_));
}

void write_file_atomically(const std::filesystem::path& destination, std::string_view text) {
  AtomicFile atomic(destination);
  File file = File::create(atomic.temporary());
  file.write(0, std::as_bytes(std::span(text)));
  file.close();
  atomic.publish();
}

void remove_stale_temporaries(const std::filesystem::path& directory) {
  const std::string host = host_name();
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::filesystem::path& file = entry->path();
    const std::optional<Writer> writer = writer_of(file.filename().string());
    if (!writer) continue;
    const bool dead = writer->host == host && (writer->process == ::getpid() || !is_alive(writer->process));
    if (dead || is_abandoned(file)) (void)::unlink(file.c_str());
  }
  if (error) fail_file(directory, "list the directory", error.value());
}

}  // namespace annulus
