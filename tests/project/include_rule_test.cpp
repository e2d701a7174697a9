// Who may include whom (docs/design.md), checked on every #include of the tree.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace annulus {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = ANNULUS_SOURCE_DIR;

/// Folders of this project that the files of a folder may include, besides their own.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"core/base", {}},
    {"kernels", {"core/base"}},
    {"nccl", {"core/base"}},
    {"io", {"core/base"}},
    {"core/nn", {"core/base", "kernels"}},
};

/// The only folders that may include a library's headers, by the start of the header's name.
const std::map<std::string, std::set<std::string>> kLibraries = {
    {"dnnl", {"kernels"}}, {"oneapi/", {"kernels"}}, {"cublas", {"kernels"}}, {"hdf5", {"io"}},
    {"H5", {"io"}},        {"zlib", {"io"}},         {"mpi.h", {"nccl"}},     {"nccl.h", {"nccl"}},
    {"CLI/", {}},          {"nlohmann/", {"io"}},    {"gtest/", {}},          {"benchmark/", {}},
};

/// Anything may be included here, and nothing here may be included elsewhere.
const std::set<std::string> kOuter = {"tools", "bench", "tests", "examples"};

/// The folder of the rule that a path (relative to the root) belongs to, or an empty string.
std::string folder_of(const std::string& path) {
  for (const auto& [folder, unused] : kMayInclude) {
    if (path.starts_with(folder + "/")) return folder;
  }
  for (const std::string& folder : kOuter) {
    if (path.starts_with(folder + "/")) return folder;
  }
  return {};
}

bool is_source(const fs::path& path) {
  static const std::set<std::string> extensions = {".h", ".cpp", ".cu", ".cuh"};
  return extensions.count(path.extension().string()) > 0;
}

/// What is wrong with one #include of a file in `folder`; empty if nothing is.
std::string fault(const std::string& folder, const std::string& header, bool quoted) {
  if (quoted) {
    if (!fs::exists(kRoot / header)) return "is not a path from the root of the tree";
    const std::string target = folder_of(header);
    if (target.empty()) return "lies in a folder that the rule does not know";
    if (target == folder || kMayInclude.at(folder).count(target) > 0) return {};
    return "is in " + target + ", which " + folder + " may not include";
  }
  for (const auto& [prefix, folders] : kLibraries) {
    if (header.starts_with(prefix) && folders.count(folder) == 0) return "is not for " + folder;
  }
  // The vocabulary leans on the standard library, fmt and CUDA, and on nothing else.
  const bool standard = header.find_first_of("./") == std::string::npos;
  const bool cuda = header == "cuda_runtime.h" || header == "cuda.h";
  if (folder == "core/base" && !standard && !header.starts_with("fmt/") && !cuda) {
    return "is neither standard C++ nor fmt nor CUDA";
  }
  return {};
}

TEST(IncludeRule, EveryIncludeFollowsTheTable) {
  const std::regex include(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
  std::size_t includes = 0;
  for (const auto& [folder, unused] : kMayInclude) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      if (!is_source(entry.path())) continue;
      std::ifstream file(entry.path());
      std::smatch match;
      for (std::string line; std::getline(file, line);) {
        if (!std::regex_search(line, match, include)) continue;
        ++includes;
        const std::string found = fault(folder, match[2], match[1] == "\"");
        EXPECT_EQ(found, "") << fs::relative(entry.path(), kRoot).string() << ": " << line << " " << found;
      }
    }
  }
  EXPECT_GT(includes, 100u) << "the test looks at the wrong place";
}

TEST(IncludeRule, EveryFolderWithSourcesIsInTheTable) {
  for (const auto& entry : fs::recursive_directory_iterator(kRoot)) {
    const std::string path = fs::relative(entry.path(), kRoot).string();
    if (path.starts_with("build") || path.starts_with(".") || !is_source(entry.path())) continue;
    EXPECT_NE(folder_of(path), "") << path << " lies in a folder that the rule does not know";
  }
}

TEST(IncludeRule, FindsViolations) {
  EXPECT_NE(fault("core/base", "kernels/dispatch.h", true), "");
  EXPECT_NE(fault("core/base", "hdf5.h", false), "");
  EXPECT_NE(fault("core/base", "unistd.h", false), "");
  EXPECT_NE(fault("kernels", "core/nn/model.h", true), "");
  EXPECT_NE(fault("nccl", "io/dataset.h", true), "");
  EXPECT_NE(fault("io", "nccl/communicator.h", true), "");
  EXPECT_NE(fault("core/nn", "nccl/communicator.h", true), "");
  EXPECT_NE(fault("core/nn", "dnnl.hpp", false), "");
  EXPECT_NE(fault("io", "tools/together.h", true), "");
  EXPECT_NE(fault("io", "dataset.h", true), "");
  EXPECT_EQ(fault("core/nn", "kernels/dispatch.h", true), "");
  EXPECT_EQ(fault("kernels", "dnnl.hpp", false), "");
}

/// Public headers are for plain C++ compilers; the build compiles each of them alone (tests/CMakeLists.txt),
/// and this finds what only a preprocessor switch would hide from it.
TEST(IncludeRule, HeadersHoldNoCudaSyntax) {
  const std::regex cuda(R"(__global__|__shared__|<<<|threadIdx|blockIdx)");
  for (const auto& [folder, unused] : kMayInclude) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      const std::string path = entry.path().string();
      const bool for_device_code = path.find("/device/") != path.npos || path.ends_with("cuda_check.h");
      if (!path.ends_with(".h") || for_device_code) continue;
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) {
        EXPECT_FALSE(std::regex_search(line, cuda))
            << fs::relative(entry.path(), kRoot).string() << ": " << line;
      }
    }
  }
}

}  // namespace
}  // namespace annulus
