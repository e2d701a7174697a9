// Sums over steps: what progress lines, metrics and the final summary are made of.
#pragma once

#include <cstdint>

#include "core/nn/training_step.h"

namespace annulus {

/// One step as a rank saw it. `seconds` is the wall time since the step before; result.times.input includes
/// the wait for the loader.
struct StepRecord {
  std::uint64_t epoch = 0;  ///< counted from 0
  std::uint64_t step = 0;   ///< of the run, counted from 1
  float learning_rate = 0;
  StepResult result;
  double seconds = 0;
};

struct RunTotals {
  double loss_sum = 0;
  std::uint64_t hits = 0, samples = 0, steps = 0;
  double seconds = 0;
  StepTimes times;

  void add(const StepRecord& record) {
    loss_sum += record.result.loss_sum;
    hits += record.result.hits;
    samples += record.result.samples;
    steps += 1;
    seconds += record.seconds;
    times.input += record.result.times.input;
    times.forward += record.result.times.forward;
    times.backward += record.result.times.backward;
    times.communication += record.result.times.communication;
    times.update += record.result.times.update;
  }

  double mean_loss() const { return samples == 0 ? 0 : loss_sum / static_cast<double>(samples); }
  double accuracy() const {
    return samples == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(samples);
  }
  double samples_per_second() const { return seconds > 0 ? static_cast<double>(samples) / seconds : 0; }
};

}  // namespace annulus
