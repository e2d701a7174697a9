// What annulus-train keeps in a checkpoint: the tensors of model and optimizer, and the state that makes a
// resumed run go on exactly where this one stood.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/nn/model.h"
#include "core/nn/optimizer.h"
#include "io/checkpoint.h"
#include "io/sampler.h"

namespace annulus {

struct TrainingState {
  std::uint64_t step = 0;  ///< steps made
  Cursor cursor;           ///< the next step to make
  std::string model;       ///< canonical spec
  InputShape input;
  std::size_t classes = 0;
  std::size_t train_samples = 0;
  std::vector<float> mean, stddev;  ///< of the data, per channel, as the model has learnt them
  int world_size = 1;               ///< for the reader's information; a resumed run may use another
  nlohmann::ordered_json recipe;    ///< the options of the run that shape the weights (train_config.h)
};

Attributes to_attributes(const TrainingState& state);

/// Throws CheckpointError that names what is missing, for a file that annulus-train did not write.
TrainingState read_training_state(const CheckpointReader& reader);

/// Views of everything to save.
std::vector<TensorToSave> tensors_to_save(const Model& model, const Optimizer& optimizer, int rank);

/// Fills the model, and the optimizer unless it is null. Throws CheckpointError before it changes anything if
/// the file lacks a tensor or has another shape.
void load_tensors(const CheckpointReader& reader, Model& model, Optimizer* optimizer, StreamView stream);

}  // namespace annulus
