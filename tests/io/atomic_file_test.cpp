#include "io/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "core/base/error.h"
#include "io/host_name.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace annulus {
namespace {

using test::expect_error;
using test::TemporaryDirectory;

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void put(const std::filesystem::path& path, const std::string& text = "x") { std::ofstream(path) << text; }

std::size_t count_files(const std::filesystem::path& directory) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(directory), {}));
}

// A process id that nobody has: that of a child that has ended and has been waited for.
pid_t dead_process() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  return child;
}

TEST(AtomicFile, AppearsOnlyWhenPublished) {
  const TemporaryDirectory directory;
  const std::filesystem::path destination = directory / "file";
  put(destination, "old");
  AtomicFile file(destination);
  EXPECT_EQ(file.temporary().parent_path(), directory.path());
  put(file.temporary(), "new");
  EXPECT_EQ(contents(destination), "old");
  file.publish();
  EXPECT_EQ(contents(destination), "new");
  EXPECT_EQ(count_files(directory.path()), 1u);
}

TEST(AtomicFile, LeavesNothingBehindWhenNotPublished) {
  const TemporaryDirectory directory;
  {
    const AtomicFile file(directory / "file");
    put(file.temporary());
  }
  EXPECT_EQ(count_files(directory.path()), 0u);
}

TEST(AtomicFile, SaysWhyItCannotPublish) {
  const TemporaryDirectory directory;
  AtomicFile unwritten(directory / "file");
  expect_error<FileError>([&] { unwritten.publish(); }, {"file.tmp-", "No such file"});

  std::filesystem::create_directory(directory / "taken");
  AtomicFile file(directory / "taken");
  put(file.temporary());
  expect_error<FileError>([&] { file.publish(); }, {"taken", "rename"});
}

TEST(AtomicFile, WritesTextsInTheCurrentDirectoryToo) {
  const TemporaryDirectory directory;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  write_file_atomically("text", "one\n");
  write_file_atomically("text", "two\n");
  std::filesystem::current_path(before);
  EXPECT_EQ(contents(directory / "text"), "two\n");
}

TEST(AtomicFile, RemovesWhatDeadWritersLeft) {
  const TemporaryDirectory directory;
  const std::string here = host_name();
  const std::string dead = directory / fmt::format("a.h5.tmp-{}-{}", here, dead_process());
  const std::string own = directory / fmt::format("a.h5.tmp-{}-{}", here, getpid());
  const std::string alive = directory / fmt::format("a.h5.tmp-{}-{}", here, getppid());
  const std::string elsewhere = directory / fmt::format("a.h5.tmp-other-host-{}", dead_process());
  const std::string abandoned = directory / "latest.tmp-other-host-77";
  const std::string unrelated = directory / "notes.tmp-of-mine";
  const std::string checkpoint = directory / "step-000000001.h5";
  for (const std::string& path : {dead, own, alive, elsewhere, abandoned, unrelated, checkpoint}) put(path);
  const timespec long_ago[2] = {{1000000000, 0}, {1000000000, 0}};
  for (const std::string& path : {abandoned, unrelated, checkpoint})
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), long_ago, 0), 0);

  remove_stale_temporaries(directory.path());
  for (const std::string& path : {dead, own, abandoned}) EXPECT_FALSE(std::filesystem::exists(path)) << path;
  for (const std::string& path : {alive, elsewhere, unrelated, checkpoint})
    EXPECT_TRUE(std::filesystem::exists(path)) << path;
  expect_error<FileError>([&] { remove_stale_temporaries(directory / "missing"); }, {"missing"});
}

}  // namespace
}  // namespace annulus
