#include "tools/training_run.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "core/base/error.h"
#include "io/atomic_file.h"
#include "io/prefetcher.h"
#include "tools/run_report.h"
#include "tools/stop_request.h"
#include "tools/together.h"
#include "tools/train_config.h"
#include "tools/trainer.h"
#include "tools/training_setup.h"

namespace annulus {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Run {
 public:
  Run(Communicator& communicator, const TrainingSetup& setup)
      : communicator_(communicator),
        setup_(setup),
        options_(setup.options),
        state_(setup.state),
        report_(setup, communicator.rank() == 0),
        trainer_(communicator, setup) {}

  void evaluate_only() {
    report_.start(trainer_.model(), 0);
    report_.evaluation(state_, trainer_.evaluate(*setup_.test));
  }

  /// Returns the signal that stopped the run, or 0.
  int train() {
    const Sampler sampler({setup_.train->size(), options_.batch_size, options_.micro_batches, options_.seed,
                           options_.drop_last});
    const ScheduleOptions schedule = schedule_options(options_, sampler.steps_per_epoch());
    together(communicator_, [&] {
      schedule.check();
      report_.open_metrics();
    });
    report_.start(trainer_.model(), sampler.steps_per_epoch());

    const std::uint64_t last_step =
        options_.max_steps == 0 ? schedule.total_steps : std::min(schedule.total_steps, options_.max_steps);
    if (state_.step >= last_step) report_.nothing_left(last_step);
    const int signal = train_until(last_step, sampler, schedule);
    if (signal == 0 && setup_.test && !evaluated_)
      report_.evaluation(state_, trainer_.evaluate(*setup_.test));
    report_.end(state_, signal);
    return signal;
  }

 private:
  int train_until(std::uint64_t last_step, const Sampler& sampler, const ScheduleOptions& schedule) {
    Prefetcher prefetcher(*setup_.train, sampler, communicator_.rank(), communicator_.world_size(),
                          state_.cursor, setup_.device);
    int signal = 0;
    step_start_ = Clock::now();
    while (state_.step < last_step && signal == 0) {
      report_.step(step(prefetcher, sampler, schedule), state_, last_step);
      signal = agreed_stop_signal();
      const bool epoch_ended = state_.cursor.step == 0;
      if (epoch_ended) end_epoch();
      if (epoch_ended || signal != 0 || state_.step == last_step ||
          (options_.save_every > 0 && state_.step % options_.save_every == 0)) {
        save();
      }
      // What came after the step, evaluation and saving, counts for no step.
      if (saved_ || epoch_ended) step_start_ = Clock::now();
    }
    return signal;
  }

  StepRecord step(Prefetcher& prefetcher, const Sampler& sampler, const ScheduleOptions& schedule) {
    StepRecord record;
    const auto wait_start = Clock::now();
    const std::span<const MicroBatch> micro_batches = prefetcher.next();
    const double waited = seconds_since(wait_start);
    record.epoch = state_.cursor.epoch;
    record.step = state_.step + 1;
    record.learning_rate = learning_rate(schedule, state_.step);
    record.result = trainer_.step(micro_batches, record.learning_rate, record.epoch, state_.step);
    record.result.times.input += waited;
    record.seconds = seconds_since(step_start_);
    step_start_ = Clock::now();
    state_.step += 1;
    state_.cursor = sampler.next(state_.cursor);
    evaluated_ = false;
    return record;
  }

  /// The signal at which all ranks stop, after the same step; 0 to go on.
  int agreed_stop_signal() {
    const std::int64_t own = stop_signal();
    if (!any_rank(communicator_, own != 0)) return 0;
    std::vector<std::int64_t> signals(static_cast<std::size_t>(communicator_.world_size()));
    communicator_.all_gather(&own, signals.data(), 1, DType::i64, StreamView());
    return static_cast<int>(*std::max_element(signals.begin(), signals.end()));
  }

  void end_epoch() {
    std::optional<Evaluation> test;
    if (setup_.test) test = trainer_.evaluate(*setup_.test);
    evaluated_ = true;
    report_.epoch_end(state_, test);
  }

  void save() {
    if (options_.checkpoint_dir.empty()) return;
    if (!saved_) write_config();
    saved_ = true;
    report_.saved(state_, trainer_.save(options_.checkpoint_dir, state_, options_.keep));
  }

  /// The options of this run, beside its first checkpoint, in a form that --config reads.
  void write_config() {
    together(communicator_, [&] {
      if (communicator_.rank() != 0) return;
      const std::string name =
          setup_.checkpoint ? fmt::format("config-from-step-{}.json", setup_.state.step) : "config.json";
      write_file_atomically(std::filesystem::path(options_.checkpoint_dir) / name,
                            options_to_json(options_).dump(2) + "\n");
    });
  }

  Communicator& communicator_;
  const TrainingSetup& setup_;
  const TrainOptions& options_;
  TrainingState state_;
  RunReport report_;
  Trainer trainer_;
  Clock::time_point step_start_;
  bool evaluated_ = false;  ///< the weights as they are now
  bool saved_ = false;      ///< a checkpoint by this run
};

}  // namespace

int run_training(Communicator& communicator, const RankEnvironment& environment,
                 const std::vector<std::string>& arguments) {
  const TrainingSetup setup = set_up_training(communicator, environment, arguments);
  const DeviceGuard guard(setup.device);
  Run run(communicator, setup);
  if (!setup.options.eval_only) return run.train();
  run.evaluate_only();
  return 0;
}

}  // namespace annulus
