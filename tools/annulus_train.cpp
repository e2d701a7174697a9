// annulus-train: trains, evaluates and resumes models on one or many ranks. This file decides what this
// process is: the parent that starts local ranks, or a rank.
#include <fmt/format.h>
#include <omp.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include "nccl/connect.h"
#include "nccl/rank_environment.h"
#include "tools/local_launcher.h"
#include "tools/stop_request.h"
#include "tools/train_command_line.h"
#include "tools/training_run.h"

namespace annulus {
namespace {

constexpr const char* kProgram = "annulus-train";
constexpr int kUsageError = 2;

/// Ranks share the cores, so each computes on one thread unless the user says otherwise.
void default_to_one_thread() {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  setenv("OMP_NUM_THREADS", "1", 1);  // for ranks that this process starts
  omp_set_num_threads(1);             // for this process, whose OpenMP has read the environment already
}

int run_rank(const RankEnvironment& environment, const std::vector<std::string>& arguments) {
  std::unique_ptr<Communicator> communicator;
  try {
    communicator = connect(environment, kDefaultDeadline, [&](std::string_view waiting) {
      if (environment.rank == 0) fmt::print(stderr, "{}\n", waiting);
    });
    const bool launched_here = environment.segment >= 0;
    catch_stop_signals(/*once=*/!launched_here);  // the parent kills at the second one
    const int signal = run_training(*communicator, environment, arguments);
    return signal == 0 ? EXIT_SUCCESS : 128 + signal;
  } catch (const std::exception& error) {
    if (communicator) communicator->abort(error.what());
    report_failure(kProgram, environment.world_size > 1 ? environment.rank : -1, error);
    return EXIT_FAILURE;
  }
}

int main(const std::vector<std::string>& arguments) {
  default_to_one_thread();
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is an error of write() then, which names the file
  std::optional<RankEnvironment> environment;
  CommandLine command_line;
  try {
    environment = detect_rank_environment();
    command_line = parse_command_line(arguments);
    if (!command_line.answer) check_options(command_line.options);
  } catch (const std::exception& error) {
    // All ranks see the same command line; one of them complains about it.
    if (!environment || environment->rank == 0) fmt::print(stderr, "{}: {}\n", kProgram, error.what());
    return kUsageError;
  }
  if (command_line.answer) {
    fmt::print("{}", *command_line.answer);
    return EXIT_SUCCESS;
  }
  if (environment) return run_rank(*environment, arguments);
  const auto ranks = static_cast<int>(command_line.options.ranks);
  if (ranks == 1) return run_rank({}, arguments);
  try {
    return launch_local_ranks(kProgram, ranks, arguments);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", kProgram, error.what());
    return EXIT_FAILURE;
  }
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) { return annulus::main({argv + 1, argv + argc}); }
