#include "tools/train_options.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

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

void check_count(const char* option, std::uint64_t value, std::uint64_t least, std::uint64_t most) {
  require<ConfigError>(value >= least && value <= most, "--{} must be {} to {}, not {}", option, least, most,
                       value);
}

/// `value` in [low, high), and no less than what f32 can tell from 0 or more than what it can hold.
void check_range(const char* option, double value, double low, double high) {
  require<ConfigError>(value >= low && value < high, "--{} must be at least {} and {}, not {}", option, low,
                       std::isinf(high) ? "finite" : fmt::format("less than {}", high), value);
  const float rounded = static_cast<float>(value);
  require<ConfigError>(std::isfinite(rounded) && (rounded != 0 || value == 0) && rounded < high,
                       "--{} is {}, which f32 cannot hold", option, value);
}

}  // namespace

void check_options(const TrainOptions& o) {
  constexpr std::array<std::string_view, 3> devices = {"auto", "cpu", "cuda"};
  constexpr std::array<std::string_view, 3> precisions = {"f32", "tf32", "bf16"};
  constexpr std::array<std::string_view, 4> augmentations = {"none", "flip", "crop", "crop-flip"};
  check_choice("device", o.device, devices);
  check_choice("augment", o.augment, augmentations);
  check_choice("precision", o.precision, precisions);
  expand_model(o.model, 10);  // any number of classes will do to see whether there is such a model
  parse_optimizer_kind(o.optimizer);
  parse_schedule_kind(o.schedule);
  DeviceMap::parse(o.map_location);

  constexpr std::uint64_t many = 1'000'000'000;  // products of two of them stay within 64 bits
  check_count("epochs", o.epochs, 1, many);
  check_count("batch-size", o.batch_size, 1, many);
  check_count("micro-batches", o.micro_batches, 0, many);
  check_count("ranks", o.ranks, 1, 1024);
  check_count("keep", o.keep, 1, many);
  const std::pair<const char*, std::uint64_t> steps[] = {{"warmup-steps", o.warmup_steps},
                                                         {"decay-every", o.decay_every},
                                                         {"max-steps", o.max_steps},
                                                         {"save-every", o.save_every}};
  for (const auto& [option, count] : steps) check_count(option, count, 0, many * many);
  visit_options(o, [](const OptionInfo& info, const auto& value) {
    if constexpr (std::is_same_v<decltype(value), const std::string&>) {
      // Configuration, metrics and checkpoints hold it as JSON text.
      const std::string text =
          nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore);
      require<ConfigError>(nlohmann::json::parse(text) == value, "--{} must be UTF-8 text", info.name);
    }
  });

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
