#include "io/checkpoint_directory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "core/base/error.h"
#include "io/atomic_file.h"
#include "io/checkpoint.h"
#include "tests/support/checkpoint_samples.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace annulus {
namespace {

using test::expect_error;
using test::SampleTensors;
using test::TemporaryDirectory;

std::filesystem::path save(const CheckpointDirectory& directory, std::int64_t step) {
  const SampleTensors sample(static_cast<int>(step));
  return directory.publish(step, [&](const std::filesystem::path& path) {
    write_checkpoint(path, sample.tensors(), {{"step", step}});
  });
}

std::set<std::string> names_in(const std::filesystem::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.insert(entry.path().filename());
  return names;
}

using Names = std::set<std::string>;
using Steps = std::vector<std::int64_t>;

class CheckpointDirectoryTest : public testing::Test {
 protected:
  TemporaryDirectory temporary_;
  CheckpointDirectory directory_{temporary_.path() / "run" / "checkpoints"};
};

TEST_F(CheckpointDirectoryTest, PublishesPointsAndPrunes) {
  directory_.check_writable();
  EXPECT_EQ(names_in(directory_.path()), Names());
  EXPECT_FALSE(directory_.latest().has_value());
  for (const std::int64_t step : {10, 20, 30}) {
    EXPECT_EQ(save(directory_, step), directory_.file_of(step));
    directory_.commit_latest(step);
    directory_.prune(2);
  }
  EXPECT_EQ(names_in(directory_.path()), Names({"latest", "step-000000020.h5", "step-000000030.h5"}));
  EXPECT_EQ(directory_.steps(), Steps({30, 20}));
  EXPECT_EQ(directory_.latest(), directory_.file_of(30));
  EXPECT_EQ(CheckpointReader(*directory_.latest()).integer("step"), 30);
  EXPECT_EQ(directory_.newest_verified().path, directory_.file_of(30));
}

TEST_F(CheckpointDirectoryTest, ReplacesACheckpointOfTheSameStep) {
  directory_.check_writable();
  save(directory_, 5);
  save(directory_, 5);
  EXPECT_EQ(directory_.steps(), Steps({5}));
  CheckpointReader(directory_.file_of(5)).verify();
}

TEST_F(CheckpointDirectoryTest, HoldsNothingWhenItIsMissing) {
  EXPECT_EQ(directory_.steps(), Steps());
  EXPECT_FALSE(directory_.latest().has_value());
  EXPECT_FALSE(directory_.newest_verified().path.has_value());
}

TEST_F(CheckpointDirectoryTest, FindsTheNewestThatVerifiesAndSaysWhyNotNewer) {
  directory_.check_writable();
  for (const std::int64_t step : {1, 2, 3}) save(directory_, step);
  std::filesystem::resize_file(directory_.file_of(3), 2000);
  const std::uint64_t offset = CheckpointReader(directory_.file_of(2)).find("large")->offset;
  std::fstream(directory_.file_of(2), std::ios::in | std::ios::out)
      .seekp(static_cast<std::streamoff>(offset) + 9)
      .put('x');
  const CheckpointDirectory::Search search = directory_.newest_verified();
  EXPECT_EQ(search.path, directory_.file_of(1));
  ASSERT_EQ(search.skipped.size(), 2u);
  EXPECT_NE(search.skipped[0].find("step-000000003.h5"), std::string::npos) << search.skipped[0];
  EXPECT_NE(search.skipped[1].find("\"large\""), std::string::npos) << search.skipped[1];
}

TEST_F(CheckpointDirectoryTest, DoesNotCountDamagedFilesWhenItPrunes) {
  directory_.check_writable();
  for (const std::int64_t step : {1, 2, 3, 4}) save(directory_, step);
  std::filesystem::resize_file(directory_.file_of(4), 2000);
  directory_.prune(2);
  EXPECT_EQ(directory_.steps(), Steps({4, 3, 2}));
  directory_.commit_latest(2);
  directory_.prune(1);
  EXPECT_EQ(directory_.steps(), Steps({4, 3, 2})) << "what `latest` names stays";
  expect_error<ConfigError>([&] { directory_.prune(0); }, {"at least one"});
}

TEST_F(CheckpointDirectoryTest, FollowsLatestOnlyToItsOwnFiles) {
  directory_.check_writable();
  save(directory_, 1);
  const std::filesystem::path outside = temporary_.path() / "step-000000001.h5";
  std::filesystem::copy_file(directory_.file_of(1), outside);
  for (const char* text : {"", "\n", "../../step-000000001.h5", "/etc/passwd", "step-1.h5",
                           "step-000000002.h5", "step--00000001.h5"}) {
    std::ofstream(directory_.path() / "latest") << text;
    EXPECT_FALSE(directory_.latest().has_value()) << text;
  }
  std::ofstream(directory_.path() / "latest") << "step-000000001.h5";
  EXPECT_EQ(directory_.latest(), directory_.file_of(1));
}

TEST_F(CheckpointDirectoryTest, LeavesOlderCheckpointsAloneWhenASaveFails) {
  directory_.check_writable();
  save(directory_, 1);
  const auto fail_with = [&](const std::function<void(const std::filesystem::path&)>& write) {
    EXPECT_THROW(directory_.publish(2, write), Error);
    EXPECT_EQ(names_in(directory_.path()), Names({"step-000000001.h5"}));
  };
  fail_with([](const std::filesystem::path&) {});
  fail_with([](const std::filesystem::path& path) { std::ofstream(path) << "half"; });
  fail_with([](const std::filesystem::path& path) {
    write_checkpoint(path, SampleTensors().tensors(), {});
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 100);
  });
  fail_with([](const std::filesystem::path& path) {
    std::ofstream(path) << "half";
    throw DeviceError("the device is gone");
  });
  EXPECT_EQ(directory_.newest_verified().path, directory_.file_of(1));
  expect_error<ConfigError>([&] { save(directory_, -1); }, {"step -1"});
}

TEST_F(CheckpointDirectoryTest, FindsOutBeforeTrainingThatItCannotWrite) {
  std::ofstream(temporary_.path() / "file") << "x";
  expect_error<FileError>([&] { CheckpointDirectory(temporary_.path() / "file").check_writable(); },
                          {"file"});
  expect_error<FileError>([&] { CheckpointDirectory(temporary_.path() / "file" / "below").check_writable(); },
                          {"below", "cannot create the checkpoint directory"});
  expect_error<FileError>([] { CheckpointDirectory("/proc").check_writable(); }, {"/proc"});
}

// A limit that the sample does not fit into. As root and otherwise.
TEST_F(CheckpointDirectoryTest, ReportsAFileSizeLimit) {
  directory_.check_writable();
  save(directory_, 1);
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit limit = before;
  limit.rlim_cur = 50'000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  expect_error<FileError>([&] { save(directory_, 2); }, {"step-000000002.h5", "50000", "ulimit -f"});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(names_in(directory_.path()), Names({"step-000000001.h5"}));
  save(directory_, 2);
}

// A disk of `bytes` bytes, for tests that fill it.
class SmallDisk {
 public:
  explicit SmallDisk(std::size_t bytes) {
    mounted_ = mount("annulus-test", directory_.path().c_str(), "tmpfs", 0,
                     fmt::format("size={}", bytes).c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) (void)umount2(directory_.path().c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  const std::filesystem::path& path() const { return directory_.path(); }

 private:
  TemporaryDirectory directory_;
  bool mounted_ = false;
};

TEST(CheckpointDirectoryOnFullDisk, KeepsTheOlderCheckpointAndGoesOn) {
  const SmallDisk disk(320 << 10);
  if (!disk.mounted()) GTEST_SKIP() << "mounting a small tmpfs needs root";
  const CheckpointDirectory directory(disk.path());
  directory.check_writable();
  save(directory, 1);  // takes about 130 KB
  save(directory, 2);
  expect_error<FileError>([&] { save(directory, 3); }, {"step-000000003.h5", "left", "free some space"});
  EXPECT_EQ(names_in(disk.path()), Names({"step-000000001.h5", "step-000000002.h5"}));
  EXPECT_EQ(directory.newest_verified().path, directory.file_of(2));
  directory.prune(1);
  save(directory, 3);
  EXPECT_EQ(directory.newest_verified().path, directory.file_of(3));
}

}  // namespace
}  // namespace annulus
