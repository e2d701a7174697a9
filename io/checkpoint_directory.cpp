#include "io/checkpoint_directory.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "io/atomic_file.h"
#include "io/checkpoint.h"
#include "io/file.h"

namespace annulus {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSuffix = ".h5";
constexpr const char* kLatest = "latest";

std::string name_of_step(std::int64_t step) { return fmt::format("{}{:09}{}", kPrefix, step, kSuffix); }

// Only names that name_of_step makes: what a pointer file says must not lead elsewhere.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  std::int64_t step = 0;
  const char* end = name.data() + name.size() - kSuffix.size();
  const auto [last, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (error != std::errc() || last != end || name_of_step(step) != name) return std::nullopt;
  return step;
}

bool opens_as_complete(const std::filesystem::path& path) {
  try {
    const CheckpointReader reader(path);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

CheckpointDirectory::CheckpointDirectory(std::filesystem::path directory)
    : directory_(std::move(directory)) {}

void CheckpointDirectory::check_writable() const {
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  if (error) fail_file(directory_, "create the checkpoint directory", error.value());
  remove_stale_temporaries(directory_);
  AtomicFile probe(directory_ / "probe");  // never published: its temporary file goes with it
  File file = File::create(probe.temporary());
  file.write(0, std::as_bytes(std::span(kLatest, 1)));
  file.sync();
}

std::filesystem::path CheckpointDirectory::file_of(std::int64_t step) const {
  return directory_ / name_of_step(step);
}

std::filesystem::path CheckpointDirectory::publish(
    std::int64_t step, const std::function<void(const std::filesystem::path&)>& write) const {
  require<ConfigError>(step >= 0, "checkpoints are numbered from step 0; found step {}", step);
  remove_stale_temporaries(directory_);
  AtomicFile file(file_of(step));
  write(file.temporary());
  (void)CheckpointReader(file.temporary());  // complete, or it is not published
  file.publish();
  return file_of(step);
}

void CheckpointDirectory::commit_latest(std::int64_t step) const {
  write_file_atomically(directory_ / kLatest, name_of_step(step) + "\n");
}

void CheckpointDirectory::prune(std::size_t keep) const {
  require<ConfigError>(keep > 0, "at least one checkpoint must be kept");
  const std::optional<std::filesystem::path> named = latest();
  std::size_t complete = 0;
  for (const std::int64_t step : steps()) {
    const std::filesystem::path path = file_of(step);
    if (!opens_as_complete(path) || ++complete <= keep || path == named) continue;
    std::error_code error;
    std::filesystem::remove(path, error);
    if (error) fail_file(path, "remove the old checkpoint", error.value());
  }
}

std::optional<std::filesystem::path> CheckpointDirectory::latest() const {
  const std::filesystem::path pointer = directory_ / kLatest;
  std::error_code error;
  if (!std::filesystem::exists(pointer, error)) return std::nullopt;
  const File file = File::open(pointer);
  std::string name(std::min<std::uint64_t>(file.size(), 64), '\0');
  file.read(0, std::as_writable_bytes(std::span(name)));
  while (name.ends_with('\n')) name.pop_back();
  if (!step_of(name) || !std::filesystem::exists(directory_ / name, error)) return std::nullopt;
  return directory_ / name;
}

std::vector<std::int64_t> CheckpointDirectory::steps() const {
  std::vector<std::int64_t> steps;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory_, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
    if (const auto step = step_of(entry->path().filename().string())) steps.push_back(*step);
  if (error && error != std::errc::no_such_file_or_directory)
    fail_file(directory_, "list the checkpoint directory", error.value());
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

CheckpointDirectory::Search CheckpointDirectory::newest_verified() const {
  Search search;
  for (const std::int64_t step : steps()) {
    const std::filesystem::path path = file_of(step);
    try {
      CheckpointReader(path).verify();
      search.path = path;
      break;
    } catch (const Error& error) {
      search.skipped.emplace_back(error.what());
    }
  }
  return search;
}

}  // namespace annulus
