// The commands that README.md marks as tested work as they stand there.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace annulus {
namespace {

/// The ```sh blocks that follow a line <!-- tested -->.
std::vector<std::string> tested_blocks() {
  std::ifstream readme(ANNULUS_SOURCE_DIR "/README.md");
  std::vector<std::string> blocks;
  bool marked = false, inside = false;
  for (std::string line; std::getline(readme, line);) {
    if (inside && line == "```") {
      inside = false;
    } else if (inside) {
      blocks.back() += line + "\n";
    } else if (marked && line == "```sh") {
      inside = true;
      blocks.emplace_back();
    }
    marked = line == "<!-- tested -->";
  }
  return blocks;
}

TEST(Readme, TestedCommandsWork) {
  const std::vector<std::string> blocks = tested_blocks();
  EXPECT_EQ(blocks.size(), 2u);
  for (const std::string& block : blocks) {
    // A checkout in which build/release is this very build.
    const test::TemporaryDirectory folder;
    std::filesystem::create_directory(folder / "build");
    std::filesystem::create_directory_symlink(ANNULUS_BINARY_DIR, folder / "build/release");
    std::filesystem::create_directory_symlink(ANNULUS_SOURCE_DIR "/examples", folder / "examples");
    const test::ProcessResult result =
        test::run_program({"bash", "-euc", "PATH=" ANNULUS_BINARY_DIR "/tools:$PATH\n" + block}, {},
                          folder.path().string(), std::chrono::seconds(300));
    EXPECT_EQ(result.status, 0) << block << result.out << result.err;
  }
}

TEST(Readme, LinksLeadSomewhere) {
  for (const char* name :
       {"/README.md", "/docs/design.md", "/docs/reproducibility.md", "/docs/cpu-backend.md"}) {
    const std::filesystem::path path = ANNULUS_SOURCE_DIR + std::string(name);
    std::ifstream file(path);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    for (std::size_t at = text.find("]("); at != text.npos; at = text.find("](", at + 1)) {
      const std::string target = text.substr(at + 2, text.find(')', at) - at - 2);
      if (target.find("://") != target.npos) continue;
      EXPECT_TRUE(std::filesystem::exists(path.parent_path() / target)) << name << " links to " << target;
    }
  }
}

}  // namespace
}  // namespace annulus
