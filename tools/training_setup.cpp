#include "tools/training_setup.h"

#include <filesystem>

#include "core/base/error.h"
#include "core/nn/layer_node.h"
#include "io/checkpoint_directory.h"
#include "io/device_map.h"
#include "kernels/augment.h"
#include "tools/together.h"
#include "tools/train_command_line.h"
#include "tools/train_config.h"
#include "tools/train_device.h"

namespace annulus {
namespace {

/// The checkpoint to start from, or an empty string. Decided by rank 0 for all.
std::string find_checkpoint(Communicator& communicator, const TrainOptions& options,
                            std::vector<std::string>& notes) {
  std::string path;
  together(communicator, [&] {
    if (communicator.rank() != 0) return;
    const CheckpointDirectory directory(options.checkpoint_dir);
    if (options.resume.empty()) {
      const auto steps = options.checkpoint_dir.empty() ? std::vector<std::int64_t>() : directory.steps();
      require<ConfigError>(
          steps.empty(),
          "{} holds a run already (its newest checkpoint is step {}); go on with --resume auto, "
          "or choose another --checkpoint-dir",
          options.checkpoint_dir, steps.empty() ? 0 : steps.front());
    } else if (options.resume == "auto") {
      CheckpointDirectory::Search search = directory.newest_verified();
      require<CheckpointError>(
          search.path || search.skipped.empty(),
          "none of the {} checkpoints in {} is whole (the newest: {}); move them away to start afresh",
          search.skipped.size(), options.checkpoint_dir,
          search.skipped.empty() ? "" : search.skipped.front());
      for (std::string& reason : search.skipped) notes.push_back("skipped " + std::move(reason));
      if (search.path) path = search.path->string();
      require<CheckpointError>(search.path || !options.eval_only,
                               "there is no good checkpoint in {} to evaluate", options.checkpoint_dir);
      if (!search.path)
        notes.push_back("no checkpoint in " + options.checkpoint_dir + " yet: starting afresh");
    } else {
      path = options.resume;
    }
  });
  return broadcast_text(communicator, path);
}

/// Refuses options under which the checkpoint's cursor or tensors would mean something else.
void check_same_run(const TrainOptions& asked, const TrainOptions& recorded, const std::string& path) {
  const auto check = [&](const char* option, const auto& a, const auto& b) {
    require<ConfigError>(a == b, "{} was made with --{} {}, not {}; leave the option away to go on with {}",
                         path, option, b, a, b);
  };
  check("optimizer", asked.optimizer, recorded.optimizer);
  check("batch-size", asked.batch_size, recorded.batch_size);
  check("micro-batches", asked.micro_batches, recorded.micro_batches);
  check("drop-last", asked.drop_last, recorded.drop_last);
  check("seed", asked.seed, recorded.seed);
}

void check_same_data(const Dataset& data, const TrainingState& state, const std::string& path) {
  const InputShape found = {data.height(), data.width(), data.channels()};
  require<ConfigError>(
      found == state.input && data.classes() == state.classes,
      "{} has images of {}x{}x{} and {} classes, but the model in {} was made for {}x{}x{} and {}",
      data.info().name, found.height, found.width, found.channels, data.classes(), path, state.input.height,
      state.input.width, state.input.channels, state.classes);
}

/// Ranks that were given different options would drift apart or wait for each other.
void check_same_options(Communicator& communicator, const TrainOptions& options) {
  const nlohmann::ordered_json own = options_to_json(options);
  const auto first = nlohmann::ordered_json::parse(broadcast_text(communicator, own.dump()));
  together(communicator, [&] {
    for (const auto& [key, value] : own.items()) {
      require<ConfigError>(first.contains(key) && first[key] == value,
                           "all ranks need the same options, but --{} is {} here and {} on rank 0", key,
                           value.dump(), first.value(key, nlohmann::ordered_json()).dump());
    }
  });
}

void resume(TrainingSetup& setup, const std::vector<std::string>& arguments, const std::string& path) {
  setup.checkpoint.emplace(path);
  setup.state = read_training_state(*setup.checkpoint);
  setup.options = parse_command_line(arguments, &setup.state.recipe).options;
  check_options(setup.options);

  TrainOptions recorded;
  apply_json(setup.state.recipe, path, recorded);
  if (setup.options.micro_batches == 0) setup.options.micro_batches = recorded.micro_batches;
  check_same_run(setup.options, recorded, path);
  require<ConfigError>(expand_model(setup.options.model, setup.state.classes) == setup.state.model,
                       "{} holds the model {}, not {}: resume it without --model, or start afresh", path,
                       recorded.model, setup.options.model);
}

void open_data(TrainingSetup& setup) {
  const TrainOptions& options = setup.options;
  if (has_test_split(options.data)) setup.test = open_dataset(options.data, Split::test);
  require<DataError>(setup.test || !options.eval_only, "{} has no test split to evaluate", options.data);
  if (!options.eval_only) setup.train = open_dataset(options.data, Split::train);

  for (const Dataset* data : {setup.train.get(), setup.test.get()}) {
    if (data != nullptr && setup.checkpoint)
      check_same_data(*data, setup.state, setup.checkpoint->path().string());
  }
  if (setup.train && setup.checkpoint) {
    require<ConfigError>(setup.train->size() == setup.state.train_samples,
                         "{} has {} samples, but {} was made with {}: the order of samples would be another",
                         setup.train->info().name, setup.train->size(), setup.checkpoint->path().string(),
                         setup.state.train_samples);
  }
}

void start_afresh(TrainingSetup& setup, int world_size) {
  const Dataset& data = *setup.train;
  TrainingState& state = setup.state;
  state.input = {data.height(), data.width(), data.channels()};
  state.classes = data.classes();
  state.train_samples = data.size();
  state.mean = data.info().mean;
  state.stddev = data.info().stddev;
  state.model = expand_model(setup.options.model, state.classes);
  if (setup.options.micro_batches == 0) {
    const auto ranks = static_cast<std::uint64_t>(world_size);
    const std::uint64_t batch = setup.options.batch_size, below = batch / ranks * ranks;
    require<ConfigError>(
        batch % ranks == 0, "--batch-size {} does not divide among {} ranks; {} would do", batch, ranks,
        below == 0 ? fmt::format("{}", ranks) : fmt::format("{} or {}", below, below + ranks));
    setup.options.micro_batches = ranks;
  }
}

/// What remains to be checked when everything is known.
void check_setup(const TrainingSetup& setup, int world_size) {
  const TrainOptions& options = setup.options;
  require<ConfigError>(setup.state.input.channels <= kernels::kMaxImageChannels,
                       "{} has images of {} channels; at most {} are supported", options.data,
                       setup.state.input.channels, kernels::kMaxImageChannels);
  const std::vector<LayerNode> layers =
      resolve_layers(parse_model_spec(setup.state.model), setup.state.input);
  const std::size_t outputs = layers.back().output.elements();
  require<ConfigError>(outputs == setup.state.classes, "the model ends in {} outputs, but {} has {} classes",
                       outputs, options.data, setup.state.classes);
  if (options.eval_only) return;
  Sampler({setup.train->size(), options.batch_size, options.micro_batches, options.seed, options.drop_last});
  check_world_size(options.micro_batches, world_size);
}

}  // namespace

TrainingSetup set_up_training(Communicator& communicator, const RankEnvironment& environment,
                              const std::vector<std::string>& arguments) {
  TrainingSetup setup;
  setup.options = parse_command_line(arguments).options;
  const std::string path = find_checkpoint(communicator, setup.options, setup.notes);
  together(communicator, [&] {
    if (!path.empty()) resume(setup, arguments, path);
    open_data(setup);
    if (path.empty()) start_afresh(setup, communicator.world_size());
    check_setup(setup, communicator.world_size());

    const DeviceChoice choice = choose_device(setup.options, environment);
    setup.device = choice.device;
    if (!choice.note.empty()) setup.notes.push_back(choice.note);
    if (setup.checkpoint)
      setup.device = map_device(setup.options, setup.checkpoint->tensors(), choice.device);
    require<ConfigError>(
        setup.options.precision == "f32" || setup.device.is_cuda(),
        "--precision {} needs a CUDA device, and this run is on the CPU; use --precision f32",
        setup.options.precision);

    setup.options.ranks = static_cast<std::uint64_t>(communicator.world_size());
    setup.state.world_size = communicator.world_size();
    setup.state.recipe = recipe_to_json(setup.options);
  });
  check_same_options(communicator, setup.options);
  together(communicator, [&] {
    if (communicator.rank() == 0 && !setup.options.checkpoint_dir.empty() && !setup.options.eval_only) {
      CheckpointDirectory(setup.options.checkpoint_dir).check_writable();
    }
  });
  return setup;
}

}  // namespace annulus
