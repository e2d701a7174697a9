// bench_kernels runs every case that a CPU has, and refuses bad options. How fast kernels are, no test says.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace annulus {
namespace {

test::ProcessResult bench(const std::vector<std::string>& options) {
  std::vector<std::string> command = {ANNULUS_BINARY_DIR "/bench/bench_kernels", "--rounds", "2", "--seconds",
                                      "1e-6"};
  command.insert(command.end(), options.begin(), options.end());
  return test::run_program(command);
}

TEST(BenchKernels, ReportsEveryKernel) {
  const test::ProcessResult result = bench({"--device", "cpu", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  std::set<std::string> kernels;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json row = nlohmann::json::parse(line);
    SCOPED_TRACE(line);
    kernels.insert(row["kernel"]);
    EXPECT_EQ(row["precision"], "f32");
    EXPECT_EQ(row["engine"], "annulus");
    EXPECT_EQ(row["device"], "cpu");
    EXPECT_GT(row["time_us"], 0);
    const double bytes = row["gb_per_s"].get<double>() * row["time_us"].get<double>();
    EXPECT_GT(bytes, 0);
    EXPECT_NE(row.contains("gflops"), row.contains("fraction_of_copy")) << "one of the two limits a kernel";
  }
  EXPECT_EQ(kernels.size(), 14u + 6u) << result.out;
}

TEST(BenchKernels, PrintsATableOfWhatIsAskedFor) {
  const test::ProcessResult result = bench({"--device", "cpu", "--only", "softmax", "--only", "adamw"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 2 + 3) << result.out;
}

TEST(BenchKernels, SaysInOneLineWhichOptionIsBad) {
  const std::vector<std::vector<std::string>> bad = {
      {"--device", "cuda:77"}, {"--device", "gpu"}, {"--rounds", "0"}, {"--device", "cpu", "--only", "lstm"}};
  for (const std::vector<std::string>& options : bad) {
    const test::ProcessResult result = bench(options);
    EXPECT_EQ(result.status, 1);
    EXPECT_NE(result.err.find(options.back() == "gpu" ? "gpu" : options[options.size() - 2]),
              std::string::npos)
        << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

}  // namespace
}  // namespace annulus
