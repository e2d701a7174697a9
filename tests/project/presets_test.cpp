// The presets configure, in the folder that they are given.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/process.h"

namespace annulus {
namespace {

TEST(Presets, Configure) {
  for (const std::string preset : {"cpu", "virtual-gpu", "asan", "tsan"}) {  // "cuda" needs nvcc
    const test::TemporaryDirectory folder;
    const test::ProcessResult result = test::run_program(
        {"cmake", "-S", ANNULUS_SOURCE_DIR, "--preset", preset, "-B", folder / "build", "-G", "Ninja"}, {},
        ANNULUS_SOURCE_DIR, std::chrono::seconds(120));
    EXPECT_EQ(result.status, 0) << preset << "\n" << result.out << result.err;
    EXPECT_TRUE(std::filesystem::exists(folder / "build/build.ninja")) << preset;
  }
}

}  // namespace
}  // namespace annulus
