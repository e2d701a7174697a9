#include "core/nn/phase_clock.h"

namespace annulus {
namespace {

double& seconds_of(StepTimes& times, Phase phase) {
  switch (phase) {
    case Phase::input:
      return times.input;
    case Phase::forward:
      return times.forward;
    case Phase::backward:
      return times.backward;
    case Phase::communication:
      return times.communication;
    case Phase::update:
      break;
  }
  return times.update;
}

}  // namespace

void PhaseClock::enter(Phase phase, StreamView stream) {
  if (used_ == marks_.size()) marks_.push_back({Event(device_, Event::Timing::on), phase});
  Mark& mark = marks_[used_++];
  mark.phase = phase;
  mark.event.record(stream);
}

StepTimes PhaseClock::times() const {
  StepTimes times;
  for (std::size_t i = 0; i + 1 < used_; ++i)
    seconds_of(times, marks_[i].phase) += marks_[i + 1].event.seconds_since(marks_[i].event);
  return times;
}

}  // namespace annulus
