#include "core/nn/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "core/base/error.h"
#include "core/base/nearest_name.h"

namespace annulus {

ScheduleKind parse_schedule_kind(std::string_view text) {
  constexpr std::array<std::string_view, 3> names = {"constant", "step", "cosine"};
  const auto found = std::find(names.begin(), names.end(), text);
  require<ConfigError>(found != names.end(), "unknown schedule \"{}\"{}; known are constant, step and cosine",
                       text, did_you_mean(text, names));
  return static_cast<ScheduleKind>(found - names.begin());
}

void ScheduleOptions::check() const {
  require<ConfigError>(std::isfinite(learning_rate) && learning_rate >= 0,
                       "the learning rate must be 0 or more, not {}", learning_rate);
  require<ConfigError>(kind != ScheduleKind::step || decay_every > 0,
                       "the step schedule needs the number of steps between two decays");
  require<ConfigError>(kind != ScheduleKind::step || (decay_factor > 0 && decay_factor <= 1),
                       "the step schedule's factor must be more than 0 and at most 1, not {}", decay_factor);
  require<ConfigError>(kind != ScheduleKind::cosine || total_steps > warmup_steps,
                       "the cosine schedule needs more steps in all ({}) than for warming up ({})",
                       total_steps, warmup_steps);
}

float learning_rate(const ScheduleOptions& options, std::uint64_t step) {
  const double peak = options.learning_rate;
  if (step < options.warmup_steps)
    return static_cast<float>(peak * static_cast<double>(step + 1) /
                              static_cast<double>(options.warmup_steps));
  const std::uint64_t since = step - options.warmup_steps;
  switch (options.kind) {
    case ScheduleKind::constant:
      break;
    case ScheduleKind::step:
      return static_cast<float>(
          peak * std::pow(double{options.decay_factor}, static_cast<double>(since / options.decay_every)));
    case ScheduleKind::cosine: {
      const auto length = static_cast<double>(options.total_steps - options.warmup_steps);
      const double progress = std::min(1.0, static_cast<double>(since) / length);
      return static_cast<float>(peak * (1 + std::cos(std::numbers::pi * progress)) / 2);
    }
  }
  return options.learning_rate;
}

}  // namespace annulus
