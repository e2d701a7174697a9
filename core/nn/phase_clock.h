// PhaseClock: what a stream spent its time on, without making the host wait.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "core/base/stream.h"
#include "core/nn/training_step.h"

namespace annulus {

enum class Phase { input, forward, backward, communication, update };

class PhaseClock {
 public:
  explicit PhaseClock(Device device) : device_(device) {}

  /// Starts a new measurement.
  void restart() { used_ = 0; }

  /// Work submitted to `stream` from now on belongs to `phase`.
  void enter(Phase phase, StreamView stream);

  /// Marks of this measurement so far.
  std::size_t marks() const { return used_; }

  /// Says that a graph marks the rest of this measurement: one like that in which it was captured, of `marks`
  /// marks.
  void resume(std::size_t marks) { used_ = marks; }

  /// Ends the last phase.
  void stop(StreamView stream) { enter(Phase::update, stream); }

  /// Seconds in each phase since the restart. Only when the stream's work is done.
  StepTimes times() const;

 private:
  struct Mark {
    Event event;
    Phase phase;
  };

  Device device_;
  std::vector<Mark> marks_;  // kept from step to step
  std::size_t used_ = 0;
};

}  // namespace annulus
