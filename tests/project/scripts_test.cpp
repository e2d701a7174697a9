// The scripts: install_dependencies.sh, with stand-ins for the programs that would change this machine, and
// the lists of mutants.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace annulus {
namespace {

using test::ProcessResult;
using test::run_program;
using test::TemporaryDirectory;

class InstallDependencies : public testing::Test {
 protected:
  InstallDependencies() {
    // All is there but one library and the data; apt-get and sudo only write down what they are asked for.
    stand_in("dpkg-query",
             R"(case "$*" in *libhdf5-dev* | *dataset-fashion-mnist*) exit 1 ;; esac; echo -n installed)");
    stand_in("apt-get", R"(echo "apt-get $*" >>"$LOG")");
    stand_in("sudo", R"(echo "sudo" >>"$LOG"; exec "$@")");
    stand_in("id", R"(echo "$USER_ID")");
  }

  void stand_in(const std::string& name, const std::string& body) {
    std::ofstream(folder_ / name) << "#!/bin/sh\n" << body << "\n";
    std::filesystem::permissions(folder_ / name, std::filesystem::perms::owner_all);
  }

  ProcessResult run(const std::vector<std::string>& arguments, const std::string& user_id) {
    std::vector<std::string> command = {ANNULUS_SOURCE_DIR "/tools/install_dependencies.sh"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    std::filesystem::remove(folder_ / "log");
    return run_program(command, {{"PATH", folder_.path().string() + ":" + getenv("PATH")},
                                 {"LOG", folder_ / "log"},
                                 {"USER_ID", user_id}});
  }

  std::string log() const {
    std::ifstream file(folder_ / "log");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const TemporaryDirectory folder_;
};

TEST_F(InstallDependencies, InstallsWhatIsMissingAndSaysSo) {
  const ProcessResult result = run({"build"}, "0");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("Installing with apt-get: libhdf5-dev"), std::string::npos) << result.out;
  EXPECT_NE(log().find("install -y --no-install-recommends libhdf5-dev\n"), std::string::npos) << log();
  EXPECT_LT(log().find(" update"), log().find(" install"));
  EXPECT_NE(log().find("dataset-fashion-mnist"), std::string::npos) << log();
  EXPECT_EQ(log().find("sudo"), std::string::npos) << log();
}

TEST_F(InstallDependencies, UsesSudoOnlyWhenNotRoot) {
  EXPECT_EQ(run({"build"}, "1000").status, 0);
  EXPECT_NE(log().find("sudo\napt-get"), std::string::npos) << log();
}

TEST_F(InstallDependencies, PrintsInsteadOfInstallingIfToldTo) {
  const ProcessResult result = run({"--no-install", "build"}, "0");
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.err.find("libhdf5-dev"), std::string::npos) << result.err;
  EXPECT_EQ(log(), "");
}

TEST_F(InstallDependencies, AsksNobodyForAPasswordForWhatIsOptional) {
  stand_in("dpkg-query", R"(case "$*" in *dataset-fashion-mnist*) exit 1 ;; esac; echo -n installed)");
  EXPECT_EQ(run({"build"}, "1000").status, 0);
  EXPECT_EQ(log(), "");
  EXPECT_EQ(run({"--no-install", "build"}, "1000").status, 0);
}

TEST_F(InstallDependencies, ExplainsItself) {
  EXPECT_EQ(run({"everything"}, "0").status, 2);
  EXPECT_EQ(run({}, "0").status, 2);
}

TEST(Bundle, SaysWhatItNeeds) {
  EXPECT_EQ(run_program({ANNULUS_SOURCE_DIR "/tools/bundle.sh"}).status, 2);
  const TemporaryDirectory empty;
  const ProcessResult result =
      run_program({ANNULUS_SOURCE_DIR "/tools/bundle.sh", empty.path().string(), empty / "b"});
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.err.find("has no tools/annulus-train"), std::string::npos) << result.err;
}

TEST(GpuCheck, SaysInOneLineThatThereIsNoGpu) {
  const TemporaryDirectory folder;
  std::ofstream(folder / "nvidia-smi") << "#!/bin/sh\necho 'No devices were found'; exit 6\n";
  std::filesystem::permissions(folder / "nvidia-smi", std::filesystem::perms::owner_all);
  const ProcessResult result =
      run_program({ANNULUS_SOURCE_DIR "/tools/gpu_check.sh", "--output", folder / "report"},
                  {{"PATH", folder.path().string() + ":" + getenv("PATH")}});
  EXPECT_EQ(result.status, 2);
  EXPECT_EQ(result.err,
            "gpu_check: nvidia-smi finds no GPU here, so there is nothing to check and no report\n");
  EXPECT_FALSE(std::filesystem::exists(folder / "report.md"));
}

// With a GPU that exists on paper only, and programs that report what the stand-ins say.
TEST(GpuCheck, ReportsWhatPassedFailedAndWasSkipped) {
  const TemporaryDirectory folder;
  const auto program = [&](const std::string& name, const std::string& body) {
    std::filesystem::create_directories((folder / name).substr(0, (folder / name).rfind('/')));
    std::ofstream(folder / name) << "#!/bin/sh\n" << body << "\n";
    std::filesystem::permissions(folder / name, std::filesystem::perms::owner_all);
  };
  program("path/nvidia-smi", "echo 'Paper GPU, 1.2, 3 MiB, 4 MHz, 5 MHz, 6 MHz, 7 MHz, 8 W, 9, Default'");
  program("build/tests/kernels_good_test", "test $ANNULUS_TEST_DEVICE = cuda");
  program("build/tests/kernels_bad_test", "echo it broke; exit 1");
  program("build/bench/bench_kernels",
          R"(echo '{"kernel": "add", "shape": "5", "precision": "f32", "engine": "annulus", "time_us": 2.5,)"
          R"( "gb_per_s": 10, "fraction_of_copy": 0.5, "copy_gb_per_s": 20}')");
  program(
      "build/bench/bench_train_step",
      R"(echo '{"engine": "annulus", "model": "mlp", "batch": 64, "precision": "f32", "samples_per_second": 9}')");
  const ProcessResult result = run_program(
      {ANNULUS_SOURCE_DIR "/tools/gpu_check.sh", "--build", folder / "build", "--output", folder / "report"},
      {{"PATH", (folder / "path") + ":" + getenv("PATH")}});
  EXPECT_EQ(result.status, 1) << result.err;
  std::ifstream file(folder / "report.md");
  const std::string report{std::istreambuf_iterator<char>(file), {}};
  for (const char* line :
       {"- name: Paper GPU", "| tests on the GPU | failed |", "1 passed, 1 failed",
        "| training and checkpoints | skipped |", "| bench_kernels | passed |",
        "| add | 5 | f32 | annulus | 2.50 | 10 | 0.50 | - | - |", "| mlp | 64 | f32 | 9 |"})
    EXPECT_NE(report.find(line), std::string::npos) << line << "\n" << report;
  EXPECT_TRUE(std::filesystem::exists(folder / "report.json"));
}

// tests/mutants/run.py: a list that no longer fits its sources would test nothing.
TEST(MutantLists, FitTheirSources) {
  const ProcessResult result = run_program({"python3", ANNULUS_SOURCE_DIR "/tests/mutants/run.py", "--list"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("core 1, core/nn/accumulation_tree.cpp: "), std::string::npos) << result.out;
}

TEST(MutantLists, UnknownFamiliesAreNamed) {
  const ProcessResult result =
      run_program({"python3", ANNULUS_SOURCE_DIR "/tests/mutants/run.py", "--list", "--family", "plumbing"});
  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.err.find("no family plumbing; there are "), std::string::npos) << result.err;
}

}  // namespace
}  // namespace annulus
