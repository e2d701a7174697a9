// How a run ends when it is stopped or a rank dies: at once, with one message, and without a trace.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/support/train_program.h"

namespace annulus {
namespace {

using namespace test;

/// Trains for longer than any test waits.
const std::vector<std::string> kEndless = {
    "--model",   "mlp",     "--data",           "synthetic:8x8x1,samples=4000",
    "--device",  "cpu",     "--batch-size",     "36",
    "--epochs",  "1000000", "--checkpoint-dir", "run",
    "--metrics", "m.jsonl"};

/// Our segments under /dev/shm.
std::set<std::string> shared_memory() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (name.find("annulus") != std::string::npos) names.insert(name);
  }
  return names;
}

/// State and parent of a process, from /proc; state X if there is no such process.
std::pair<char, pid_t> state_and_parent(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(stat, text);
  const std::size_t name_end = text.rfind(')');  // a name may hold anything
  if (name_end == std::string::npos) return {'X', 0};
  std::istringstream fields(text.substr(name_end + 1));
  char state = 'X';
  pid_t parent = 0;
  fields >> state >> parent;
  return {state, parent};
}

/// Alive, that is, more than an entry that nobody has waited for yet.
bool alive(pid_t pid) {
  const char state = state_and_parent(pid).first;
  return state != 'X' && state != 'Z';
}

/// By ascending process id: rank 0 first.
std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto pid = static_cast<pid_t>(std::stol(name));
    if (alive(pid) && state_and_parent(pid).second == parent) children.push_back(pid);
  }
  std::sort(children.begin(), children.end());
  return children;
}

bool wait_for_steps(const std::string& metrics) {
  for (int i = 0; i < 6000; ++i) {
    std::ifstream file(metrics);
    std::string line;
    while (std::getline(file, line)) {
      if (line.find("\"event\":\"step\"") != std::string::npos) return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

void expect_no_trace(const std::string& folder, const std::set<std::string>& shared_before) {
  EXPECT_EQ(shared_memory(), shared_before);
  for (const std::string& name : list_files(folder)) {
    EXPECT_EQ(name.find("tmp"), std::string::npos) << name << " was left behind";
  }
}

TEST(AnnulusTrainStop, CtrlCEndsAllRanksAfterTheSameStepAndSaves) {
  for (const char* ranks : {"1", "2", "3"}) {
    const TemporaryDirectory folder;
    const auto shared_before = shared_memory();
    Process process(train_command(with(kEndless, {"--ranks", ranks})), without_launcher(), folder.path());
    ASSERT_TRUE(wait_for_steps(folder / "m.jsonl")) << process.err();
    const std::vector<pid_t> children = children_of(process.pid());
    process.signal(SIGINT);
    const ProcessResult result = process.wait(std::chrono::seconds(60));
    EXPECT_EQ(result.status, 130) << result.err;
    EXPECT_EQ(result.err, "");
    EXPECT_NE(result.out.find("stopped after step"), std::string::npos) << result.out;
    EXPECT_EQ(children.size(), ranks[0] == '1' ? 0u : static_cast<std::size_t>(ranks[0] - '0'));
    for (const pid_t child : children) EXPECT_FALSE(alive(child)) << "a rank outlived the run";
    expect_no_trace(folder.path(), shared_before);

    const auto end = read_metrics(folder / "m.jsonl", "end").at(0);
    EXPECT_EQ(end.at("signal"), SIGINT);
    const CheckpointReader reader(folder / end.at("checkpoint").get<std::string>());
    reader.verify();
    EXPECT_EQ(reader.integer("step"), end.at("step"));
  }
}

TEST(AnnulusTrainStop, ATerminalsCtrlCReachesEveryProcessAndEndsTheRunOnce) {
  // A terminal sends SIGINT to the whole process group.
  const TemporaryDirectory folder;
  Process process(train_command(with(kEndless, {"--ranks", "2"})), without_launcher(), folder.path());
  ASSERT_TRUE(wait_for_steps(folder / "m.jsonl")) << process.err();
  kill(-process.pid(), SIGINT);
  const ProcessResult result = process.wait(std::chrono::seconds(60));
  EXPECT_EQ(result.status, 130) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(read_metrics(folder / "m.jsonl", "end").size(), 1u);
}

TEST(AnnulusTrainStop, ADeadRankEndsTheRunWithOneMessage) {
  for (const std::size_t victim : {0, 1, 2}) {
    const TemporaryDirectory folder;
    const auto shared_before = shared_memory();
    Process process(train_command(with(kEndless, {"--ranks", "3"})), without_launcher(), folder.path());
    ASSERT_TRUE(wait_for_steps(folder / "m.jsonl")) << process.err();
    const std::vector<pid_t> children = children_of(process.pid());
    ASSERT_EQ(children.size(), 3u);
    kill(children[victim], SIGKILL);
    const ProcessResult result = process.wait(std::chrono::seconds(30));
    EXPECT_EQ(result.status, 128 + SIGKILL);
    EXPECT_EQ(count_lines(result.err), 1u) << result.err;
    EXPECT_NE(result.err.find("rank " + std::to_string(victim)), std::string::npos) << result.err;
    for (const pid_t child : children) EXPECT_FALSE(alive(child)) << "a rank outlived the run";
    expect_no_trace(folder.path(), shared_before);
  }
}

TEST(AnnulusTrainStop, RanksDoNotOutliveAKilledParent) {
  const TemporaryDirectory folder;
  const auto shared_before = shared_memory();
  Process process(train_command(with(kEndless, {"--ranks", "2"})), without_launcher(), folder.path());
  ASSERT_TRUE(wait_for_steps(folder / "m.jsonl")) << process.err();
  const std::vector<pid_t> children = children_of(process.pid());
  ASSERT_EQ(children.size(), 2u);
  kill(process.pid(), SIGKILL);
  for (const pid_t child : children) {
    for (int i = 0; i < 1000 && alive(child); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_FALSE(alive(child)) << "a rank outlived the run";
  }
  process.wait();
  EXPECT_EQ(shared_memory(), shared_before);
}

}  // namespace
}  // namespace annulus
