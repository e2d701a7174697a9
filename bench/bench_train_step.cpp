// Samples/s of a training step, and where its time goes: `mlp` and `cnn`, one process per rank with one core
// or one CUDA device. METRICS.md defines every column.
//
//   bench_train_step --configurations mlp:64,cnn:256 --ranks 1,2 --seconds 1 [--json]
//   bench_train_step --device cuda --precision bf16 --ranks 1 [--json]
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/bench_program.h"
#include "bench/fma_peak.h"
#include "bench/rank_processes.h"
#include "core/base/philox.h"
#include "core/nn/layer_node.h"
#include "core/nn/training_step.h"
#include "nccl/bucketed_reducer.h"

namespace annulus::bench {
namespace {

constexpr InputShape kInput{28, 28, 1};
constexpr std::size_t kClasses = 10;
constexpr float kLearningRate = 0.01f;

struct Configuration {
  std::string model;
  std::size_t batch = 0;  // per rank
};

/// What all ranks of a measurement share.
struct Settings {
  bool cuda = false;  ///< rank r on CUDA device r, or on a core of the CPU
  Precision precision = Precision::f32;
  double seconds = 1;  ///< measured per configuration

  Device device(int rank) const { return cuda ? Device::cuda(rank) : Device::cpu(); }
};

/// What one rank measured.
struct RankResult {
  std::size_t steps = 0;
  double seconds = 0;                                                          ///< of all steps
  double input = 0, forward = 0, backward = 0, communication = 0, update = 0;  ///< their split
  double loss_before = 0, loss_after = 0;  ///< of the first step and of the last
  double fma_peak = 0;                     ///< GFLOP/s of the rank's core around the measurement
};

/// One batch in memory, page-locked for a CUDA device, as a loader would hand it over.
class FixedBatch {
 public:
  FixedBatch(std::size_t samples, int rank, Device device)
      : samples_(samples),
        images_(Buffer::pinned(device, samples * kInput.height * kInput.width)),
        labels_(Buffer::pinned(device, samples * sizeof(std::int32_t))),
        index_(Buffer::pinned(device, samples * sizeof(std::int64_t))) {
    const Philox random(1, RandomPurpose::synthetic, static_cast<std::uint64_t>(rank));
    const MicroBatch batch = view();
    for (std::size_t i = 0; i < batch.images.elements(); ++i)
      batch.images.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(random.below(i, 256));
    for (std::size_t i = 0; i < samples; ++i) {
      batch.labels.as<std::int32_t>()[i] =
          static_cast<std::int32_t>(random.below(batch.images.elements() + i, kClasses));
      batch.sample_index.as<std::int64_t>()[i] = static_cast<std::int64_t>(i);
    }
  }

  MicroBatch view() const {
    return {.images = Tensor(images_.data(), {samples_, kInput.height, kInput.width, 1}, DType::u8),
            .labels = Tensor(labels_.data(), {samples_}, DType::i32),
            .sample_index = Tensor(index_.data(), {samples_}, DType::i64)};
  }

 private:
  std::size_t samples_;
  Buffer images_, labels_, index_;
};

/// Additions and multiplications of matrix products and convolutions for one sample: forward, the gradient
/// of the weights and, but for the first such layer, of the input.
double flop_per_sample(const std::string& model) {
  double total = 0;
  bool first = true;
  for (const LayerNode& layer : resolve_layers(parse_model_spec(expand_model(model, kClasses)), kInput)) {
    const std::vector<ArenaSlice> slices = layer.slices();
    if (slices.empty()) continue;
    const Shape& weight = slices.front().shape;
    const double positions = static_cast<double>(layer.output.elements() / weight[0]);
    total += (first ? 2 : 3) * 2 * positions * static_cast<double>(weight.elements());
    first = false;
  }
  return total;
}

/// Trains one model on one batch for about `settings.seconds`, as one rank of several.
RankResult measure(const Configuration& configuration, const Settings& settings, Communicator& communicator) {
  using Clock = std::chrono::steady_clock;
  const double seconds = settings.seconds;
  const Device own = settings.device(communicator.rank());
  Model model(
      expand_model(configuration.model, kClasses), kInput, own,
      [&](Device device, std::size_t bytes) { return communicator.allocate(device, bytes); },
      settings.precision);
  model.initialise(1);
  const auto optimizer = Optimizer::make({.momentum = 0.9f}, model.arena());
  BucketedReducer reducer(communicator, model.arena().gradients());
  TrainingStep training(model, *optimizer, reducer);
  const FixedBatch batch(configuration.batch, communicator.rank(), own);
  const MicroBatch micro_batch = batch.view();

  RankResult result;
  std::uint64_t step = 0;
  const auto run = [&](std::size_t steps) {
    communicator.barrier();
    const auto start = Clock::now();
    for (std::size_t i = 0; i < steps; ++i) {
      const StepResult done = training.run({&micro_batch, 1}, kLearningRate, 0, step++);
      if (step == 1) result.loss_before = done.loss_sum;
      result.loss_after = done.loss_sum;
      result.input += done.times.input;
      result.forward += done.times.forward;
      result.backward += done.times.backward;
      result.communication += done.times.communication;
      result.update += done.times.update;
    }
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const auto steps_in = [&](double duration, double seconds_per_step) {
    auto steps = static_cast<std::int64_t>(std::max(5.0, duration / seconds_per_step));
    communicator.broadcast(&steps, 1, DType::i64, 0, StreamView());
    return static_cast<std::size_t>(steps);
  };

  run(5);  // plans, first touches
  const std::size_t warm_up = steps_in(0.25 * seconds, run(5) / 5);
  result.steps = steps_in(seconds, run(warm_up) / static_cast<double>(warm_up));
  result.fma_peak = own.is_cpu() ? measure_fma_peak() : 0;
  result.input = result.forward = result.backward = result.communication = result.update = 0;
  result.seconds = run(result.steps);
  if (own.is_cpu()) result.fma_peak = (result.fma_peak + measure_fma_peak()) / 2;
  require<NonFiniteError>(result.loss_after < result.loss_before,
                          "{} at batch {} does not learn: the loss went from {} to {}", configuration.model,
                          configuration.batch, result.loss_before, result.loss_after);
  return result;
}

nlohmann::json run_configuration(const Configuration& configuration, int ranks, const Settings& settings) {
  const double flop = flop_per_sample(configuration.model);  // finds an unknown model before ranks start
  const std::vector<RankResult> results = run_ranks(
      ranks, [&](Communicator& communicator) { return measure(configuration, settings, communicator); });
  const auto slowest =
      *std::max_element(results.begin(), results.end(),
                        [](const RankResult& a, const RankResult& b) { return a.seconds < b.seconds; });
  const double steps = static_cast<double>(slowest.steps);
  const double rank_samples = static_cast<double>(configuration.batch) * steps / slowest.seconds;
  const double gflops = rank_samples * flop * 1e-9;
  const auto milliseconds = [steps](double all) { return 1e3 * all / steps; };
  return {{"engine", "annulus"},
          {"model", configuration.model},
          {"batch", configuration.batch},
          {"device", settings.cuda ? "cuda" : "cpu"},
          {"precision", name_of(settings.precision)},
          {"ranks", ranks},
          {"steps", slowest.steps},
          {"step_ms", milliseconds(slowest.seconds)},
          {"samples_per_second", ranks * rank_samples},
          {"split_ms",
           {{"input", milliseconds(slowest.input)},
            {"forward", milliseconds(slowest.forward)},
            {"backward", milliseconds(slowest.backward)},
            {"communication", milliseconds(slowest.communication)},
            {"update", milliseconds(slowest.update)}}},
          {"gflops_per_rank", gflops},
          {"fma_peak_gflops", slowest.fma_peak},
          {"fraction_of_peak", slowest.fma_peak > 0 ? gflops / slowest.fma_peak : 0.0}};
}

void print_header() {
  fmt::print("{:5} {:>6} {:>5} {:>11} {:>8} {:>7} {:>8} {:>9} {:>7} {:>7} {:>8} {:>6}\n", "model", "batch",
             "ranks", "samples/s", "step ms", "input", "forward", "backward", "comm", "update", "GFLOP/s",
             "% peak");
}

void print_row(const nlohmann::json& row) {
  const nlohmann::json& split = row["split_ms"];
  const auto number = [](const nlohmann::json& value) { return value.get<double>(); };
  fmt::print(
      "{:5} {:>6} {:>5} {:>11.0f} {:>8.3f} {:>7.3f} {:>8.3f} {:>9.3f} {:>7.3f} {:>7.3f} {:>8.1f} {:>6.1f}\n",
      row["model"].get<std::string>(), row["batch"].get<std::size_t>(), row["ranks"].get<int>(),
      number(row["samples_per_second"]), number(row["step_ms"]), number(split["input"]),
      number(split["forward"]), number(split["backward"]), number(split["communication"]),
      number(split["update"]), number(row["gflops_per_rank"]), 100 * number(row["fraction_of_peak"]));
}

Configuration parse_configuration(const std::string& text) {
  const std::size_t colon = text.find(':');
  const bool digits = colon != std::string::npos && colon + 1 < text.size() && text.size() < colon + 8 &&
                      text.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  const std::size_t batch = digits ? std::stoul(text.substr(colon + 1)) : 0;
  require<ConfigError>(batch > 0, "--configurations: \"{}\" is not MODEL:BATCH, for instance cnn:64", text);
  return {text.substr(0, colon), batch};
}

int run(int argc, char** argv) {
  std::vector<std::string> configurations{"mlp:64", "mlp:256", "cnn:64", "cnn:256"};
  std::vector<int> ranks{1, 2};
  Settings settings;
  std::string device = "cpu", precision = "f32";
  bool json = false;
  CLI::App app("Samples/s of a training step, and where its time goes");
  app.add_option("--configurations", configurations, "MODEL:BATCH,... with the batch per rank")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--device", device, "cpu: a core per rank; cuda: a device per rank")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--precision", precision, "f32; with --device cuda also tf32 and bf16")
      ->capture_default_str();
  app.add_option("--ranks", ranks, "numbers of ranks")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--seconds", settings.seconds, "measured per configuration")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--json", json, "one JSON object a line instead of a table");
  if (!parse_options(app, argc, argv)) return 0;

  settings.cuda = device == "cuda";
  settings.precision = parse_precision(precision);
  require<ConfigError>(settings.cuda || settings.precision == Precision::f32,
                       "--precision {} needs --device cuda; the CPU computes in f32", precision);

  std::vector<Configuration> parsed;
  for (const std::string& text : configurations) parsed.push_back(parse_configuration(text));
  if (!json) print_header();
  for (const int count : ranks)
    for (const Configuration& configuration : parsed)
      write_row(run_configuration(configuration, count, settings), json, print_row);
  return 0;
}

}  // namespace
}  // namespace annulus::bench

int main(int argc, char** argv) {
  return annulus::bench::run_program("bench_train_step", annulus::bench::run, argc, argv);
}
