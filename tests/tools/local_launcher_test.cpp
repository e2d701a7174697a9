// The launcher, watched from outside. This program plays all parts: without arguments it runs the tests,
// "launch N ROLE" makes it a launcher of N ranks, and as a rank it does what ROLE says.
#include "tools/local_launcher.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "nccl/connect.h"
#include "nccl/rank_environment.h"
#include "tests/support/process.h"

namespace annulus {
namespace {

using namespace std::chrono_literals;
using test::Process;
using test::ProcessResult;
using test::run_program;

// ---- The ranks ----

void use_for_ever(Communicator& communicator) {
  for (;;) communicator.barrier();
}

void say_ready(int rank) {
  std::printf("rank %d is process %d\n", rank, getpid());
  std::fflush(stdout);
}

volatile std::sig_atomic_t stops = 0;

// What rank `rank` of three does; the return value is its exit status.
const std::map<std::string, std::function<int(Communicator&, const RankEnvironment&)>> kRoles = {
    {"work",
     [](Communicator& communicator, const RankEnvironment& environment) {
       float sum = 1.0f;
       communicator.all_reduce_sum(&sum, 1, DType::f32, {});
       const bool right = sum == 3.0f && environment.local_rank == environment.rank &&
                          environment.local_world_size == 3 &&
                          environment.launcher == "annulus-train --ranks";
       return right ? 0 : 9;
     }},
    {"throw",
     [](Communicator& communicator, const RankEnvironment& environment) {
       communicator.barrier();
       if (environment.rank == 1) throw DataError("the dataset is damaged");
       use_for_ever(communicator);
       return 0;
     }},
    {"kill",
     [](Communicator& communicator, const RankEnvironment& environment) {
       communicator.barrier();
       if (environment.rank == 2) raise(SIGKILL);
       use_for_ever(communicator);
       return 0;
     }},
    {"exit",
     [](Communicator& communicator, const RankEnvironment& environment) {
       communicator.barrier();
       if (environment.rank == 1) std::_Exit(42);
       use_for_ever(communicator);
       return 0;
     }},
    {"disagree",
     [](Communicator& communicator, const RankEnvironment& environment) {
       float own[2] = {};
       communicator.all_reduce_sum(own, environment.rank == 2 ? 2 : 1, DType::f32, {});
       return 0;
     }},
    {"stubborn",  // two ranks that hear nothing, one that fails
     [](Communicator& communicator, const RankEnvironment& environment) {
       std::signal(SIGTERM, SIG_IGN);
       communicator.barrier();
       if (environment.rank == 0) throw DataError("the dataset is damaged");
       for (;;) pause();
       return 0;
     }},
    {"sleep",
     [](Communicator& communicator, const RankEnvironment& environment) {
       communicator.barrier();
       say_ready(environment.rank);
       for (;;) pause();
       return 0;
     }},
    {"stop in order",  // counts signals, ends some time after the first
     [](Communicator& communicator, const RankEnvironment& environment) {
       for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { stops = stops + 1; });
       communicator.barrier();
       say_ready(environment.rank);
       while (stops == 0) std::this_thread::sleep_for(1ms);
       std::this_thread::sleep_for(200ms);
       std::printf("rank %d was told %d times\n", environment.rank, static_cast<int>(stops));
       return 128 + SIGINT;
     }},
    {"ignore signals",
     [](Communicator& communicator, const RankEnvironment& environment) {
       for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_IGN);
       communicator.barrier();
       say_ready(environment.rank);
       for (;;) pause();
       return 0;
     }},
};

int run_rank(const std::string& role, const RankEnvironment& environment) {
  std::unique_ptr<Communicator> communicator;
  try {
    communicator = connect(environment);
    return kRoles.at(role)(*communicator, environment);
  } catch (const std::exception& error) {
    if (communicator) communicator->abort(error.what());
    report_failure("test", environment.rank, error);
    return EXIT_FAILURE;
  }
}

int main(int argc, char** argv) {
  if (argc == 4 && argv[1] == std::string("launch")) {
    if (const auto environment = detect_rank_environment()) return run_rank(argv[3], *environment);
    try {
      return launch_local_ranks("test", std::atoi(argv[2]), {argv + 1, argv + argc});
    } catch (const std::exception& error) {
      std::fprintf(stderr, "test: %s\n", error.what());
      return EXIT_FAILURE;
    }
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

// ---- The tests ----

std::vector<std::string> launch(const std::string& role) { return {"/proc/self/exe", "launch", "3", role}; }

std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

void expect_one_line(const ProcessResult& result, std::initializer_list<std::string_view> parts) {
  EXPECT_EQ(lines(result.err), 1u) << result.err;
  EXPECT_EQ(result.err.rfind("test: ", 0), 0u) << result.err;
  for (const std::string_view part : parts) EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
}

// The processes that say_ready() has named.
std::vector<pid_t> rank_processes(const Process& launcher) {
  std::vector<pid_t> processes;
  for (const char* rank : {"rank 0 is process ", "rank 1 is process ", "rank 2 is process "}) {
    EXPECT_TRUE(launcher.wait_for_output(rank));
    const std::string out = launcher.out();
    processes.push_back(std::atoi(out.c_str() + out.find(rank) + std::string(rank).size()));
  }
  return processes;
}

void expect_gone(const std::vector<pid_t>& processes) {
  for (const pid_t process : processes) {
    // Orphans are reaped by init, which may take a moment.
    for (int i = 0; i < 2000 && kill(process, 0) == 0; ++i) {
      std::string state;
      std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
      stat >> state >> state >> state;
      if (state == "Z") break;
      std::this_thread::sleep_for(1ms);
      ASSERT_LT(i, 1999) << "process " << process << " still runs";
    }
  }
}

TEST(LocalLauncher, RunsTheRanksQuietly) {
  const ProcessResult result = run_program(launch("work"));
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.err, "");
}

TEST(LocalLauncher, TellsTheFirstErrorOnceAndReturnsItsStatus) {
  const ProcessResult result = run_program(launch("throw"));
  EXPECT_EQ(result.status, EXIT_FAILURE);
  expect_one_line(result, {"test: rank 1: the dataset is damaged"});
}

TEST(LocalLauncher, NamesTheRankThatWasKilledNotThoseThatNoticed) {
  const ProcessResult result = run_program(launch("kill"));
  EXPECT_EQ(result.status, 128 + SIGKILL);
  expect_one_line(result, {"rank 2 (pid ", "killed by signal 9 (Killed)", "stopped"});
}

TEST(LocalLauncher, NamesTheRankThatEndedWithoutAWord) {
  const ProcessResult result = run_program(launch("exit"));
  EXPECT_EQ(result.status, 42);
  expect_one_line(result, {"rank 1 (pid ", "ended with status 42"});
}

TEST(LocalLauncher, TellsACommunicationErrorOnce) {
  const ProcessResult result = run_program(launch("disagree"));
  EXPECT_EQ(result.status, EXIT_FAILURE);
  expect_one_line(result, {"rank 0", "all-reduce of 1 f32", "rank 2", "all-reduce of 2 f32"});
}

TEST(LocalLauncher, KillsRanksThatDoNotStopByThemselves) {
  const auto start = std::chrono::steady_clock::now();
  const ProcessResult result = run_program(launch("stubborn"));
  EXPECT_EQ(result.status, EXIT_FAILURE);
  expect_one_line(result, {"rank 0: the dataset is damaged"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
}

TEST(LocalLauncher, PassesASignalOnAndLeavesNobody) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Process launcher(launch("sleep"));
    const auto ranks = rank_processes(launcher);
    launcher.signal(signal);
    expect_gone(ranks);
    const ProcessResult result = launcher.wait();
    EXPECT_EQ(result.status, 128 + signal);
    expect_one_line(result, {"stopped by signal " + std::to_string(signal)});
  }
}

TEST(LocalLauncher, RanksThatStopInOrderNeedNoMessage) {
  Process launcher(launch("stop in order"));
  const auto ranks = rank_processes(launcher);
  launcher.signal(SIGINT);
  expect_gone(ranks);
  const ProcessResult result = launcher.wait();
  EXPECT_EQ(result.status, 128 + SIGINT);
  EXPECT_EQ(result.err, "");
  for (const char* rank : {"0", "1", "2"}) {
    EXPECT_NE(result.out.find(std::string("rank ") + rank + " was told 1 times"), std::string::npos)
        << result.out;
  }
  expect_gone(ranks);
}

TEST(LocalLauncher, ASecondSignalKills) {
  Process launcher(launch("ignore signals"));
  const auto ranks = rank_processes(launcher);
  launcher.signal(SIGINT);
  std::this_thread::sleep_for(100ms);
  launcher.signal(SIGINT);  // an echo of the first, not the user's second thought
  std::this_thread::sleep_for(400ms);
  for (const pid_t rank : ranks) EXPECT_EQ(kill(rank, 0), 0);
  launcher.signal(SIGINT);
  expect_gone(ranks);
  EXPECT_EQ(launcher.wait().status, 128 + SIGINT);
}

TEST(LocalLauncher, NoRankOutlivesTheLauncher) {
  Process launcher(launch("ignore signals"));
  const auto ranks = rank_processes(launcher);
  kill(launcher.pid(), SIGKILL);
  expect_gone(ranks);
  EXPECT_EQ(launcher.wait().status, 128 + SIGKILL);
}

TEST(LocalLauncher, ReportsWithoutALauncherGoToStderr) {
  testing::internal::CaptureStderr();
  report_failure("test", 3, DataError("no data"));
  report_failure("test", -1, CommunicationError("no peer"));
  report_failure("test", 1, RelayedError("another rank says so"));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "test: rank 3: no data\ntest: no peer\n");
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) { return annulus::main(argc, argv); }
