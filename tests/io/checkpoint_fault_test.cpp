// What happens to a checkpoint directory when the system fails: call by call, and by SIGKILL.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <random>
#include <thread>

#include "core/base/error.h"
#include "io/checkpoint.h"
#include "io/checkpoint_directory.h"
#include "tests/support/checkpoint_samples.h"
#include "tests/support/temporary_directory.h"

namespace {

// Counts the calls below that this process makes and lets one of them fail.
struct {
  int calls = 0;
  int failing = 0;  // which call; 0 for none
  int error = 0;
} faults;

bool fails_now() {
  if (faults.failing == 0 || ++faults.calls != faults.failing) return false;
  errno = faults.error;
  return true;
}

}  // namespace

// These stand in for libc's, in this program only.
extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(arguments, int) : 0;
  va_end(arguments);
  return fails_now() ? -1 : static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

ssize_t pwrite(int descriptor, const void* bytes, size_t count, off_t offset) {
  return fails_now() ? -1 : syscall(SYS_pwrite64, descriptor, bytes, count, offset);
}

ssize_t pread(int descriptor, void* bytes, size_t count, off_t offset) {
  return fails_now() ? -1 : syscall(SYS_pread64, descriptor, bytes, count, offset);
}

int fallocate(int descriptor, int mode, off_t offset, off_t length) {
  return fails_now() ? -1 : static_cast<int>(syscall(SYS_fallocate, descriptor, mode, offset, length));
}

int memfd_create(const char* name, unsigned flags) noexcept {
  return fails_now() ? -1 : static_cast<int>(syscall(SYS_memfd_create, name, flags));
}

int fsync(int descriptor) { return fails_now() ? -1 : static_cast<int>(syscall(SYS_fsync, descriptor)); }

int rename(const char* from, const char* to) noexcept {
  return fails_now() ? -1 : static_cast<int>(syscall(SYS_rename, from, to));
}

int close(int descriptor) {
  const int status = static_cast<int>(syscall(SYS_close, descriptor));
  return fails_now() ? -1 : status;
}

}  // extern "C"

namespace annulus {
namespace {

using test::SampleTensors;
using test::TemporaryDirectory;

void save(const CheckpointDirectory& directory, const SampleTensors& sample, std::int64_t step) {
  directory.publish(step, [&](const std::filesystem::path& path) {
    write_checkpoint(path, sample.tensors(), {{"step", step}});
  });
  directory.commit_latest(step);
}

bool has_temporaries(const std::filesystem::path& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    if (entry.path().string().find(".tmp-") != std::string::npos) return true;
  return false;
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(all, {}));
}

// Every call of a save fails once, with a full disk and with a broken one in turn. Either the save fails with
// an error and everything is as before, or (when only closing or the last steps fail) it is there and whole.
TEST(CheckpointFaults, LeaveTheOlderCheckpointIntactAtEveryCall) {
  const TemporaryDirectory temporary;
  const CheckpointDirectory directory(temporary.path());
  const SampleTensors sample;
  save(directory, sample, 1);
  const std::size_t descriptors = open_descriptors();
  int errors = 0;
  bool failed = true;
  for (int call = 1; failed; ++call) {
    std::filesystem::remove(directory.file_of(2));
    directory.commit_latest(1);
    faults = {0, call, call % 2 == 0 ? ENOSPC : EIO};
    try {
      save(directory, sample, 2);
    } catch (const Error& error) {
      ++errors;
      EXPECT_NE(std::string(error.what()).find(temporary.path()), std::string::npos) << error.what();
    }
    failed = faults.calls >= call;
    faults = {};
    EXPECT_FALSE(has_temporaries(temporary.path())) << "call " << call;
    CheckpointReader(directory.file_of(1)).verify();
    EXPECT_TRUE(directory.newest_verified().skipped.empty()) << "call " << call;
    ASSERT_TRUE(directory.latest().has_value()) << "call " << call;
    CheckpointReader(*directory.latest()).verify();
    EXPECT_EQ(open_descriptors(), descriptors) << "call " << call;
    ASSERT_LT(call, 1000);
  }
  EXPECT_GT(errors, 20);
  save(directory, sample, 2);
  EXPECT_EQ(directory.newest_verified().path, directory.file_of(2));
}

TEST(CheckpointKill, AlwaysLeavesACompleteCheckpoint) {
  const TemporaryDirectory temporary;
  const CheckpointDirectory directory(temporary.path());
  SampleTensors sample;
  sample.add("larger", TensorRole::parameter, Shape{1 << 20}, DType::f32);
  save(directory, sample, 0);
  std::mt19937 random(1);
  std::int64_t step = 0;
  for (int round = 0; round < 40; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (std::int64_t next = step + 1;; ++next) {
        save(directory, sample, next);
        directory.prune(2);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 40'000));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);

    const CheckpointDirectory::Search search = directory.newest_verified();
    ASSERT_TRUE(search.path.has_value());
    EXPECT_TRUE(search.skipped.empty()) << search.skipped.front();
    ASSERT_TRUE(directory.latest().has_value());
    CheckpointReader(*directory.latest()).verify();
    step = CheckpointReader(*search.path).integer("step") + 1;
    save(directory, sample, step);
    EXPECT_FALSE(has_temporaries(temporary.path())) << "round " << round;
  }
}

}  // namespace
}  // namespace annulus
