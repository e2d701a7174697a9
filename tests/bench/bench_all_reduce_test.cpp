// bench_all_reduce runs, checks its results and refuses bad options. How fast it is, no test says.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace annulus {
namespace {

test::ProcessResult bench(const std::vector<std::string>& options) {
  std::vector<std::string> command = {ANNULUS_BINARY_DIR "/bench/bench_all_reduce"};
  command.insert(command.end(), options.begin(), options.end());
  return test::run_program(command);
}

TEST(BenchAllReduce, ReportsEverySizeInBothKindsOfMemory) {
  const test::ProcessResult result = bench({"--ranks", "2,3", "--min-bytes", "1022", "--max-bytes", "600K",
                                            "--factor", "24", "--seconds", "0.001", "--limit", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  std::vector<nlohmann::json> rows;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(rows.size(), 2u * 3 * 2) << result.out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const nlohmann::json& row = rows[i];
    SCOPED_TRACE(row.dump());
    const std::size_t ranks = i < 6 ? 2 : 3, sizes[] = {1020, 24528, 588672};
    EXPECT_EQ(row["ranks"], ranks);
    EXPECT_EQ(row["size"], sizes[i % 6 / 2]);
    EXPECT_EQ(row["count"], sizes[i % 6 / 2] / 4);
    EXPECT_EQ(row["memory"], i % 2 == 0 ? "zero-copy" : "ordinary");
    EXPECT_EQ(row["wrong"], 0);
    EXPECT_GT(row["time_us"], 0);
    const double algorithm = row["algbw_gb_per_s"], bus = row["busbw_gb_per_s"];
    EXPECT_NEAR(bus / algorithm, ranks == 2 ? 1.0 : 4.0 / 3, 1e-9);
    EXPECT_EQ(row.contains("fraction_of_limit"), ranks == 2);
  }
}

TEST(BenchAllReduce, PrintsATable) {
  const test::ProcessResult result =
      bench({"--ranks", "2", "--max-bytes", "4K", "--seconds", "0.001", "--limit"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1 + 2 * 2) << result.out;
}

TEST(BenchAllReduce, SaysInOneLineWhichOptionIsBad) {
  const std::vector<std::vector<std::string>> bad = {
      {"--factor", "1"}, {"--min-bytes", "3"}, {"--max-bytes", "8"}, {"--ranks", "0"}, {"--seconds", "0"}};
  for (const std::vector<std::string>& options : bad) {
    const test::ProcessResult result = bench(options);
    EXPECT_EQ(result.status, 1);
    EXPECT_NE(result.err.find(options[0]), std::string::npos) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

}  // namespace
}  // namespace annulus
