#include "tools/train_options.h"

#include <array>
#include <cmath>
#include <span>
#include <string_view>

#include "core/base/error.h"
#include "core/base/nearest_name.h"
#include "core/nn/model_spec.h"
#include "core/nn/optimizer.h"
#include "core/nn/schedule.h"
#include "io/device_map.h"
#include "io/sampler.h"

namespace annulus {
namespace {

void check_choice(const char* option, std::string_view value, std::span<const std::string_view> choices) {
  std::string list;
  for (const std::string_view choice : choices) {
    if (value == choice) return;
    list += (list.empty() ? "" : ", ") + std::string(choice);
  }
  fail<ConfigError>("--{} must be one of {}, not \"{}\"{}", option, list, value,
                    did_you_mean(value, choices));
}

void check_positive(const char* option, std::uint64_t value) {
  require<ConfigError>(value >= 1, "--{} must be at least 1", option);
}

/// `value` in [low, high).
void check_range(const char* option, double value, double low, double high) {
  require<ConfigError>(value >= low && value < high, "--{} must be at least {} and {}, not {}", option, low,
                       std::isinf(high) ? "finite" : fmt::format("less than {}", high), value);
}

}  // namespace

void check_options(const TrainOptions& o) {
  constexpr std::array<std::string_view, 3> devices = {"auto", "cpu", "cuda"};
  constexpr std::array<std::string_view, 4> augmentations = {"none", "flip", "crop", "crop-flip"};
  check_choice("device", o.device, devices);
  check_choice("augment", o.augment, augmentations);
  expand_model(o.model, 10);  // any number of classes will do to see whether there is such a model
  parse_optimizer_kind(o.optimizer);
  parse_schedule_kind(o.schedule);
  DeviceMap::parse(o.map_location);

  check_positive("epochs", o.epochs);
  check_positive("batch-size", o.batch_size);
  check_positive("ranks", o.ranks);
  check_positive("keep", o.keep);

  constexpr double infinity = HUGE_VAL;
  check_range("lr", o.lr, 0, infinity);
  check_range("momentum", o.momentum, 0, 1);
  check_range("weight-decay", o.weight_decay, 0, infinity);
  check_range("decay-factor", o.decay_factor, 0, infinity);
  check_range("label-smoothing", o.label_smoothing, 0, 1);
  check_range("clip-norm", o.clip_norm, 0, infinity);
  require<ConfigError>(o.schedule != "step" || o.decay_every > 0,
                       "--schedule step needs --decay-every: the steps between two decays");
  require<ConfigError>(!o.nesterov || (o.optimizer == "sgd" && o.momentum > 0),
                       "--nesterov needs --optimizer sgd with --momentum above 0");

  require<ConfigError>(o.resume != "auto" || !o.checkpoint_dir.empty(),
                       "--resume auto needs --checkpoint-dir: where to look for checkpoints");
  require<ConfigError>(!o.eval_only || !o.resume.empty(),
                       "--eval-only needs --resume: the checkpoint to evaluate");
  require<ConfigError>(o.save_every == 0 || !o.checkpoint_dir.empty(),
                       "--save-every needs --checkpoint-dir: where to save");
}

}  // namespace annulus
