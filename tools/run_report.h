// What a run tells: lines and a progress bar for the user, and the metrics file. Only rank 0 tells anything.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "tools/metrics_writer.h"
#include "tools/progress.h"
#include "tools/run_totals.h"
#include "tools/trainer.h"
#include "tools/training_setup.h"

namespace annulus {

class RunReport {
 public:
  /// On other ranks than the first, all calls do nothing. `setup` must outlive the report.
  RunReport(const TrainingSetup& setup, bool first_rank);

  /// Opens the metrics file that the options name. Throws FileError.
  void open_metrics();

  void start(const Model& model, std::size_t steps_per_epoch);
  void nothing_left(std::uint64_t last_step);

  /// `state` is the state after the step.
  void step(const StepRecord& record, const TrainingState& state, std::uint64_t last_step);
  void epoch_end(const TrainingState& state, const std::optional<Evaluation>& test);
  void evaluation(const TrainingState& state, const Evaluation& test);
  void saved(const TrainingState& state, const std::filesystem::path& path);
  void end(const TrainingState& state, int signal);

 private:
  void metrics_evaluation(const TrainingState& state, const Evaluation& test);
  void summary(const TrainingState& state, int signal);

  const TrainingSetup& setup_;
  const bool first_rank_;
  std::size_t steps_per_epoch_ = 0;
  Progress progress_;
  MetricsWriter metrics_;
  RunTotals epoch_, total_;
  std::optional<Evaluation> last_test_;
  std::optional<std::filesystem::path> saved_;
};

}  // namespace annulus
