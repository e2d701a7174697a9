// Everything that is decided before the first step: options, data, device, and where a resumed run goes on.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "io/dataset.h"
#include "nccl/communicator.h"
#include "nccl/rank_environment.h"
#include "tools/train_options.h"
#include "tools/training_checkpoint.h"

namespace annulus {

struct TrainingSetup {
  TrainOptions options;                        ///< complete: micro_batches and ranks are set
  std::optional<CheckpointReader> checkpoint;  ///< that the run starts from
  TrainingState state;                         ///< of that checkpoint, or of a fresh start
  std::unique_ptr<Dataset> train;              ///< null with --eval-only
  std::unique_ptr<Dataset> test;               ///< null if the data has none
  Device device;
  std::vector<std::string> notes;  ///< lines for the user
};

/// Works it out on every rank from the same arguments. Nothing is written, except that the checkpoint
/// directory is made and tried. Collective; failures end on all ranks as together() says.
TrainingSetup set_up_training(Communicator& communicator, const RankEnvironment& environment,
                              const std::vector<std::string>& arguments);

}  // namespace annulus
