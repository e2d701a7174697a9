// A model in training on one rank: what the run loop steps, evaluates and saves.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "core/nn/model.h"
#include "core/nn/optimizer.h"
#include "core/nn/schedule.h"
#include "core/nn/training_step.h"
#include "io/dataset.h"
#include "nccl/bucketed_reducer.h"
#include "nccl/communicator.h"
#include "tools/training_setup.h"

namespace annulus {

/// Sums over a whole split.
struct Evaluation {
  double loss_sum = 0;
  std::uint64_t hits = 0, samples = 0;

  double mean_loss() const { return samples == 0 ? 0 : loss_sum / static_cast<double>(samples); }
  double accuracy() const {
    return samples == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(samples);
  }
};

class Trainer {
 public:
  /// Builds the model on the rank's device, with initial weights or those of the checkpoint, the same on all
  /// ranks. `setup` must outlive the trainer. Collective.
  Trainer(Communicator& communicator, const TrainingSetup& setup);

  const Model& model() const { return model_; }

  /// One step; collective. A loss that is not finite ends it on all ranks, and one of them reports it.
  StepResult step(std::span<const MicroBatch> micro_batches, float learning_rate, std::uint64_t epoch,
                  std::uint64_t step);

  /// Loss and hits over the whole split, each sample counted once. Collective.
  Evaluation evaluate(const Dataset& data);

  /// Saves `state` and all tensors in `directory` and keeps the newest `keep` checkpoints. When it returns,
  /// the file is complete and every rank knows. Collective.
  std::filesystem::path save(const std::filesystem::path& directory, const TrainingState& state,
                             std::size_t keep);

 private:
  Communicator& communicator_;
  const TrainingSetup& setup_;
  Stream stream_;
  Model model_;
  std::unique_ptr<Optimizer> optimizer_;
  BucketedReducer reducer_;
  TrainingStep step_;
};

/// The schedule that the options describe, for an epoch of so many steps.
ScheduleOptions schedule_options(const TrainOptions& options, std::size_t steps_per_epoch);

}  // namespace annulus
