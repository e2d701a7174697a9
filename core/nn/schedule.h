// Learning rate as a function of the step.
#pragma once

#include <cstdint>
#include <string_view>

namespace annulus {

enum class ScheduleKind { constant, step, cosine };

/// Reads "constant", "step" or "cosine"; throws ConfigError that suggests the nearest.
ScheduleKind parse_schedule_kind(std::string_view text);

/// All lengths are in optimizer steps, so that a schedule is a property of the run, not of the machine.
struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::constant;
  float learning_rate = 0.1f;      ///< after warm-up
  std::uint64_t warmup_steps = 0;  ///< linear: step s < warmup_steps gets (s + 1) / warmup_steps of the rate
  std::uint64_t total_steps = 0;   ///< cosine: the rate reaches 0 here, and stays there
  std::uint64_t decay_every = 0;   ///< step: every so many steps after warm-up, ...
  float decay_factor = 0.1f;       ///< ... the rate is multiplied by this

  /// Throws ConfigError for options that make no sense.
  void check() const;
};

/// The rate of step 0, 1, ... With w = warmup_steps, after warm-up:
///   step:   learning_rate * decay_factor^floor((step - w) / decay_every)
///   cosine: learning_rate * (1 + cos(pi * (step - w) / (total_steps - w))) / 2
float learning_rate(const ScheduleOptions& options, std::uint64_t step);

}  // namespace annulus
