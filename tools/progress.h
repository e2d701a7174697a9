// What the user of annulus-train sees: a bar that moves on a terminal, a plain line now and then elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "tools/run_totals.h"

namespace annulus {

/// Where in the run a step is.
struct Position {
  std::uint64_t epochs = 0;          ///< of the run
  std::uint64_t steps_in_epoch = 0;  ///< of every epoch
  std::uint64_t step_in_epoch = 0;   ///< steps made in this one
  std::uint64_t steps_left = 0;      ///< to the end of the run
};

class Progress {
 public:
  /// Prints to `out`, as a terminal or not. A silent one (every rank but the first) prints nothing.
  Progress(std::FILE* out, bool terminal, bool silent);

  /// A line that stays.
  void line(std::string_view text);

  /// Called after every step; `epoch` holds this epoch's sums so far.
  void step(const StepRecord& record, const RunTotals& epoch, const Position& position);

 private:
  void erase_bar();

  std::FILE* out_;
  bool terminal_, silent_;
  bool bar_shown_ = false;
  std::chrono::steady_clock::time_point shown_;
  double seconds_per_step_ = 0;  ///< smoothed, for the ETA
};

/// "1:02:03", "2:03" or "12 s".
std::string duration_text(double seconds);

}  // namespace annulus
