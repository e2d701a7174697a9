#include "tools/run_report.h"

#include <unistd.h>

#include "tools/train_config.h"

namespace annulus {
namespace {

std::string plural(std::uint64_t count, const char* noun, const char* ending = "s") {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : ending);
}

std::string test_text(const Evaluation& test) {
  return fmt::format("test loss {:.4f}  test accuracy {:.2f}%", test.mean_loss(), 100 * test.accuracy());
}

}  // namespace

RunReport::RunReport(const TrainingSetup& setup, bool first_rank)
    : setup_(setup), first_rank_(first_rank), progress_(stdout, isatty(STDOUT_FILENO) != 0, !first_rank) {}

void RunReport::open_metrics() {
  if (first_rank_ && !setup_.options.metrics.empty()) {
    metrics_ = MetricsWriter(setup_.options.metrics, /*append=*/setup_.checkpoint.has_value());
  }
}

void RunReport::start(const Model& model, std::size_t steps_per_epoch) {
  steps_per_epoch_ = steps_per_epoch;
  const TrainOptions& options = setup_.options;
  const TrainingState& state = setup_.state;
  const std::size_t parameters = model.arena().parameter_count();
  for (const std::string& note : setup_.notes) progress_.line(note);
  progress_.line(fmt::format("{} ({} parameters) on {}{}, images of {}x{}x{}", options.model, parameters,
                             options.data,
                             setup_.train ? fmt::format(", {}", plural(setup_.train->size(), "sample")) : "",
                             state.input.height, state.input.width, state.input.channels));
  const std::string ranks =
      plural(options.ranks, "rank") + " on " + (setup_.device.is_cpu() ? "the CPU" : "CUDA");
  if (setup_.train) {
    progress_.line(fmt::format("{} in {}, batch {} in {}, {} per epoch, seed {}", ranks, options.precision,
                               options.batch_size, plural(options.micro_batches, "micro-batch", "es"),
                               plural(steps_per_epoch, "step"), options.seed));
  } else {
    progress_.line(ranks);
  }
  if (setup_.checkpoint) {
    progress_.line(fmt::format("from {}, after step {}", setup_.checkpoint->path().string(), state.step));
  }
  metrics_.event("start", {{"version", ANNULUS_VERSION},
                           {"step", state.step},
                           {"world_size", options.ranks},
                           {"device", setup_.device.to_string()},
                           {"model", state.model},
                           {"parameters", parameters},
                           {"steps_per_epoch", steps_per_epoch},
                           {"options", options_to_json(options)}});
}

void RunReport::nothing_left(std::uint64_t last_step) {
  progress_.line(
      fmt::format("nothing left to train: all {} steps are done; for more, raise --epochs", last_step));
}

void RunReport::step(const StepRecord& record, const TrainingState& state, std::uint64_t last_step) {
  epoch_.add(record);
  total_.add(record);
  if (!first_rank_) return;
  metrics_.step(record);
  const std::uint64_t step_in_epoch = state.cursor.step == 0 ? steps_per_epoch_ : state.cursor.step;
  progress_.step(record, epoch_,
                 {setup_.options.epochs, steps_per_epoch_, step_in_epoch, last_step - state.step});
}

void RunReport::epoch_end(const TrainingState& state, const std::optional<Evaluation>& test) {
  if (test) metrics_evaluation(state, *test);
  progress_.line(fmt::format("epoch {}/{}  loss {:.4f}  accuracy {:.2f}%  {}{}{:.0f} samples/s  {}",
                             state.cursor.epoch, setup_.options.epochs, epoch_.mean_loss(),
                             100 * epoch_.accuracy(), test ? test_text(*test) : "", test ? "  " : "",
                             epoch_.samples_per_second(), duration_text(epoch_.seconds)));
  epoch_ = RunTotals();
}

void RunReport::evaluation(const TrainingState& state, const Evaluation& test) {
  metrics_evaluation(state, test);
  progress_.line(fmt::format("{}  ({} of {})", test_text(test), test.hits, test.samples));
}

void RunReport::metrics_evaluation(const TrainingState& state, const Evaluation& test) {
  last_test_ = test;
  metrics_.event("evaluation", {{"epoch", state.cursor.epoch},
                                {"step", state.step},
                                {"loss", test.mean_loss()},
                                {"accuracy", test.accuracy()},
                                {"hits", test.hits},
                                {"samples", test.samples}});
}

void RunReport::saved(const TrainingState& state, const std::filesystem::path& path) {
  saved_ = path;
  metrics_.event("checkpoint", {{"step", state.step}, {"path", path.string()}});
}

void RunReport::end(const TrainingState& state, int signal) {
  if (!first_rank_) return;
  summary(state, signal);
  nlohmann::ordered_json end = {{"step", state.step},
                                {"steps", total_.steps},
                                {"samples", total_.samples},
                                {"seconds", total_.seconds},
                                {"samples_per_second", total_.samples_per_second()},
                                {"loss", total_.mean_loss()},
                                {"signal", signal}};
  if (last_test_) {
    end["test_loss"] = last_test_->mean_loss();
    end["test_accuracy"] = last_test_->accuracy();
  }
  if (saved_) end["checkpoint"] = saved_->string();
  metrics_.event("end", end);
}

void RunReport::summary(const TrainingState& state, int signal) {
  if (total_.steps > 0) {
    const auto share = [&](double seconds) { return 100 * seconds / total_.seconds; };
    const StepTimes& times = total_.times;
    progress_.line(
        fmt::format("{} in {}, {:.0f} samples/s; of the time, input {:.1f}%, forward {:.1f}%, backward "
                    "{:.1f}%, communication {:.1f}%, update {:.1f}%",
                    plural(total_.steps, "step"), duration_text(total_.seconds), total_.samples_per_second(),
                    share(times.input), share(times.forward), share(times.backward),
                    share(times.communication), share(times.update)));
  }
  if (signal != 0) {
    progress_.line(fmt::format("stopped after step {}{}", state.step,
                               saved_ ? "" : "; without --checkpoint-dir, nothing was saved"));
  }
  if (saved_) {
    progress_.line(fmt::format("checkpoint {}; go on with --checkpoint-dir {} --resume auto",
                               saved_->string(), setup_.options.checkpoint_dir));
  }
}

}  // namespace annulus
