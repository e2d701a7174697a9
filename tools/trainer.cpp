#include "tools/trainer.h"

#include <algorithm>
#include <array>

#include "io/checkpoint_directory.h"
#include "io/evaluation_loader.h"
#include "tools/together.h"

namespace annulus {
namespace {

OptimizerOptions optimizer_options(const TrainOptions& options) {
  OptimizerOptions result;
  result.kind = parse_optimizer_kind(options.optimizer);
  result.momentum = static_cast<float>(options.momentum);
  result.nesterov = options.nesterov;
  result.weight_decay = static_cast<float>(options.weight_decay);
  return result;
}

TrainingOptions training_options(const TrainingSetup& setup) {
  const TrainOptions& options = setup.options;
  TrainingOptions result;
  result.label_smoothing = static_cast<float>(options.label_smoothing);
  result.clip_norm = static_cast<float>(options.clip_norm);
  result.seed = options.seed;
  for (std::size_t channel = 0; channel < setup.state.mean.size(); ++channel) {
    result.augment.mean[channel] = setup.state.mean[channel];
    result.augment.inverse_std[channel] = 1 / setup.state.stddev[channel];
  }
  if (options.augment.starts_with("crop")) result.augment.crop_padding = 4;
  result.augment.horizontal_flip = options.augment.ends_with("flip");
  return result;
}

/// Large enough for full speed, and no larger than what training needs anyway where that is more.
std::size_t evaluation_batch(const TrainOptions& options) {
  return std::max<std::size_t>(64,
                               options.micro_batches == 0 ? 0 : options.batch_size / options.micro_batches);
}

}  // namespace

Trainer::Trainer(Communicator& communicator, const TrainingSetup& setup)
    : communicator_(communicator),
      setup_(setup),
      stream_(setup.device),
      model_(
          setup.state.model, setup.state.input, setup.device,
          [&](Device device, std::size_t bytes) { return communicator.allocate(device, bytes); },
          parse_precision(setup.options.precision)),
      optimizer_(Optimizer::make(optimizer_options(setup.options), model_.arena())),
      reducer_(communicator, model_.arena().gradients()),
      step_(model_, *optimizer_, reducer_, training_options(setup)) {
  together(communicator, [&] {
    if (!setup.checkpoint) return model_.initialise(setup.options.seed);
    load_tensors(*setup.checkpoint, model_, setup.options.eval_only ? nullptr : optimizer_.get(), stream_);
    optimizer_->set_steps(static_cast<std::int64_t>(setup.state.step));
  });
  // The same seed or file has given every rank the same weights; this makes it certain.
  const Tensor weights = model_.arena().weights();
  communicator.broadcast(weights.data(), weights.elements(), weights.dtype(), 0, stream_);
  stream_.synchronize();
  model_.arena().weights_changed();
}

StepResult Trainer::step(std::span<const MicroBatch> micro_batches, float learning_rate, std::uint64_t epoch,
                         std::uint64_t step) {
  try {
    return step_.run(micro_batches, learning_rate, epoch, step);
  } catch (const NonFiniteError&) {
    together(communicator_, [] { throw; });  // every rank is here, and one is enough to tell
    throw;
  }
}

Evaluation Trainer::evaluate(const Dataset& data) {
  EvaluationLoader loader(data, communicator_.rank(), communicator_.world_size(),
                          evaluation_batch(setup_.options), model_.device());
  // Sums of f32 losses are exact in f64 here, and so are the counts: no order of adding matters.
  std::array<double, 3> sums = {};
  for (std::size_t i = 0; i < loader.batches(); ++i) {
    const StepResult result = step_.evaluate(loader.read(i));
    sums[0] += result.loss_sum;
    sums[1] += static_cast<double>(result.hits);
    sums[2] += static_cast<double>(result.samples);
  }
  communicator_.all_reduce_sum(sums.data(), sums.size(), DType::f64, StreamView());
  return {sums[0], static_cast<std::uint64_t>(sums[1]), static_cast<std::uint64_t>(sums[2])};
}

std::filesystem::path Trainer::save(const std::filesystem::path& path, const TrainingState& state,
                                    std::size_t keep) {
  const CheckpointDirectory directory(path);
  const auto step = static_cast<std::int64_t>(state.step);
  const bool writer = communicator_.rank() == 0;
  together(communicator_, [&] {
    if (!writer) return;
    directory.publish(step, [&](const std::filesystem::path& file) {
      write_checkpoint(file, tensors_to_save(model_, *optimizer_, communicator_.rank()), to_attributes(state),
                       stream_);
    });
  });
  together(communicator_, [&] {
    if (!writer) return;
    directory.commit_latest(step);
    directory.prune(keep);
  });
  return directory.file_of(step);
}

ScheduleOptions schedule_options(const TrainOptions& options, std::size_t steps_per_epoch) {
  ScheduleOptions schedule;
  schedule.kind = parse_schedule_kind(options.schedule);
  schedule.learning_rate = static_cast<float>(options.lr);
  schedule.warmup_steps = options.warmup_steps;
  schedule.total_steps = options.epochs * steps_per_epoch;
  schedule.decay_every = options.decay_every;
  schedule.decay_factor = static_cast<float>(options.decay_factor);
  return schedule;
}

}  // namespace annulus
