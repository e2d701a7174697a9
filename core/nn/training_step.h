// TrainingStep: from this rank's micro-batches to updated weights.
//
// The gradients of the micro-batches are summed in a binary-counter tree (adjacent aligned pairs first).
// On the last micro-batch, each layer's gradients are carried through the tree as soon as they are there,
// and announced to the GradientSynchronizer, which continues the same tree over the ranks. So the bits do
// not depend on how many ranks share the micro-batches of a global batch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/base/gradient_synchronizer.h"
#include "core/base/micro_batch.h"
#include "core/nn/model.h"
#include "core/nn/optimizer.h"
#include "kernels/augment.h"

namespace annulus {

struct TrainingOptions {
  float label_smoothing = 0;  ///< in [0, 1)
  float clip_norm = 0;        ///< largest global norm of the averaged gradient; 0: no clipping
  std::uint64_t seed = 0;     ///< of dropout and augmentation
  /// Normalisation, crop and flip. Its seed and epoch are set by the step; evaluation only normalises.
  kernels::AugmentOptions augment = {};
};

/// Seconds of one step on the compute stream, by what they were spent on. Communication is the exposed
/// part: what the compute stream waited for.
struct StepTimes {
  double input = 0, forward = 0, backward = 0, communication = 0, update = 0;
};

struct StepResult {
  double loss_sum = 0;   ///< over samples
  std::size_t hits = 0;  ///< samples whose first largest logit is the label
  std::size_t samples = 0;
  StepTimes times;

  double mean_loss() const { return samples == 0 ? 0 : loss_sum / static_cast<double>(samples); }
};

class TrainingStep {
 public:
  /// All three must outlive the step, and `synchronizer` be bound to the model's gradient arena. Throws
  /// ConfigError for options out of range.
  TrainingStep(Model& model, Optimizer& optimizer, GradientSynchronizer& synchronizer,
               const TrainingOptions& options = {});
  ~TrainingStep();
  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

  /// One step on this rank's micro-batches, in order; at least one, any of them may be empty. The result is
  /// of the global batch, and the same on every rank. Memory is planned when a batch size or a number of
  /// micro-batches comes for the first time; after that, a step allocates nothing.
  ///
  /// A loss (or, with clipping, a norm of the gradient) that is NaN or infinite leaves the weights as they
  /// were and throws NonFiniteError, on every rank alike, that names the step and the first layer, in forward
  /// order, with a weight or an activation that is not finite. Throws CommunicationError from the
  /// synchronizer, ShapeError for a micro-batch that does not fit the model.
  StepResult run(std::span<const MicroBatch> micro_batches, float learning_rate, std::uint64_t epoch,
                 std::uint64_t step);

  /// Loss and hits of one batch, of this rank only: with running statistics, without dropout, augmentation
  /// and label smoothing.
  StepResult evaluate(const MicroBatch& batch);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace annulus
