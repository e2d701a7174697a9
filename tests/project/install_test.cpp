// An installed Annulus serves a program outside of this tree, which links no more than it needs.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/process.h"

namespace annulus {
namespace {

using test::ProcessResult;
using test::run_program;

TEST(Install, AnotherProgramFindsThePackageAndLinksNoMoreThanItNeeds) {
  const test::TemporaryDirectory folder;
  const auto run = [&](const std::vector<std::string>& command) {
    const ProcessResult result = run_program(command, {}, folder.path().string(), std::chrono::seconds(300));
    EXPECT_EQ(result.status, 0) << testing::PrintToString(command) << "\n" << result.out << result.err;
    return result.out;
  };
  run({"cmake", "--install", ANNULUS_BINARY_DIR, "--prefix", folder / "prefix"});
  run({"cmake", "-S", ANNULUS_SOURCE_DIR "/examples/embed", "-B", "build", "-G", "Ninja",
       "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_PREFIX_PATH=" + (folder / "prefix")});
  run({"cmake", "--build", "build"});
  EXPECT_NE(run({folder / "build/embed"}).find("64 of 64 right"), std::string::npos);

  const std::string needed = run({"readelf", "--dynamic", folder / "build/embed"});
  EXPECT_NE(needed.find("libdnnl"), std::string::npos) << needed;
  for (const char* library : {"hdf5", "libz", "mpi", "nccl", "libcuda"}) {
    EXPECT_EQ(needed.find(library), std::string::npos) << "annulus::core needs " << library << ":\n"
                                                       << needed;
  }
  // Installed headers are those of the libraries, and none of them is for the tree alone.
  EXPECT_TRUE(std::filesystem::exists(folder / "prefix/include/annulus/core/nn/model.h"));
  EXPECT_FALSE(std::filesystem::exists(folder / "prefix/include/annulus/kernels/device"));
  EXPECT_TRUE(std::filesystem::exists(folder / "prefix/bin/annulus-train"));
}

}  // namespace
}  // namespace annulus
