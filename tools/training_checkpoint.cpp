#include "tools/training_checkpoint.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"

namespace annulus {
namespace {

using Json = nlohmann::ordered_json;

std::string state_name(const OptimizerState& state) { return state.parameter + "." + state.name; }

std::size_t size_attribute(const CheckpointReader& reader, const std::string& name) {
  const std::int64_t value = reader.integer(name);
  require<CheckpointError>(value >= 0, "{}: attribute {} is {}, but a count cannot be negative",
                           reader.path().string(), name, value);
  return static_cast<std::size_t>(value);
}

Json json_attribute(const CheckpointReader& reader, const std::string& name) {
  Json json = Json::parse(reader.text(name), nullptr, /*allow_exceptions=*/false);
  require<CheckpointError>(!json.is_discarded(), "{}: attribute {} is not JSON", reader.path().string(),
                           name);
  return json;
}

/// One number per channel, above `low`.
std::vector<float> floats_attribute(const CheckpointReader& reader, const std::string& name,
                                    std::size_t channels, float low) {
  const Json json = json_attribute(reader, name);
  const auto fits = [low](const Json& value) {
    return value.is_number() && std::isfinite(value.get<float>()) && value.get<float>() > low;
  };
  require<CheckpointError>(
      json.is_array() && json.size() == channels && std::all_of(json.begin(), json.end(), fits),
      "{}: attribute {} is {}, but expected one number for each of {} channels{}", reader.path().string(),
      name, json.dump(), channels, low == 0 ? ", above 0" : "");
  return json.get<std::vector<float>>();
}

}  // namespace

Attributes to_attributes(const TrainingState& state) {
  const auto integer = [](std::uint64_t value) { return static_cast<std::int64_t>(value); };
  return {{"step", integer(state.step)},
          {"epoch", integer(state.cursor.epoch)},
          {"step_in_epoch", integer(state.cursor.step)},
          {"model", state.model},
          {"input_height", integer(state.input.height)},
          {"input_width", integer(state.input.width)},
          {"input_channels", integer(state.input.channels)},
          {"classes", integer(state.classes)},
          {"train_samples", integer(state.train_samples)},
          {"mean", Json(state.mean).dump()},
          {"stddev", Json(state.stddev).dump()},
          {"world_size", integer(static_cast<std::uint64_t>(state.world_size))},
          {"recipe", state.recipe.dump()}};
}

TrainingState read_training_state(const CheckpointReader& reader) {
  TrainingState state;
  state.step = size_attribute(reader, "step");
  state.cursor = {size_attribute(reader, "epoch"), size_attribute(reader, "step_in_epoch")};
  state.model = reader.text("model");
  state.input = {size_attribute(reader, "input_height"), size_attribute(reader, "input_width"),
                 size_attribute(reader, "input_channels")};
  state.classes = size_attribute(reader, "classes");
  state.train_samples = size_attribute(reader, "train_samples");
  state.mean = floats_attribute(reader, "mean", state.input.channels, -HUGE_VALF);
  state.stddev = floats_attribute(reader, "stddev", state.input.channels, 0);
  state.world_size = static_cast<int>(size_attribute(reader, "world_size"));
  state.recipe = json_attribute(reader, "recipe");
  return state;
}

std::vector<TensorToSave> tensors_to_save(const Model& model, const Optimizer& optimizer, int rank) {
  const Provenance provenance = local_provenance(model.device(), rank);
  std::vector<TensorToSave> tensors;
  for (const ArenaSlice& slice : model.arena().slices()) {
    const TensorRole role =
        slice.role == ArenaSlice::Role::parameter ? TensorRole::parameter : TensorRole::buffer;
    tensors.push_back(tensor_to_save(slice.name, role, model.arena().weights(slice), provenance));
  }
  for (const OptimizerState& state : optimizer.states()) {
    tensors.push_back(tensor_to_save(state_name(state), TensorRole::optimizer_state, state.tensor, provenance,
                                     state.parameter));
  }
  return tensors;
}

void load_tensors(const CheckpointReader& reader, Model& model, Optimizer* optimizer, StreamView stream) {
  std::vector<TensorToLoad> tensors;
  for (const ArenaSlice& slice : model.arena().slices()) {
    tensors.push_back({slice.name, model.arena().weights(slice)});
  }
  if (optimizer != nullptr) {
    for (const OptimizerState& state : optimizer->states())
      tensors.push_back({state_name(state), state.tensor});
  }
  reader.load(tensors, stream);
}

}  // namespace annulus
