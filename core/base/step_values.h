// What changes from one training step to the next and is read by kernels. They read it from their device's
// memory, so that the launches of a step are the same every time and can be captured once in a CUDA graph.
#pragma once

#include <cstdint>

namespace annulus {

struct StepValues {
  std::uint64_t step = 0;   ///< keys dropout
  std::uint64_t epoch = 0;  ///< keys crops and flips
  float learning_rate = 0;
  float adamw_step_size = 0;                ///< learning_rate / (1 - beta1^t)
  float adamw_inverse_root_correction = 0;  ///< 1 / sqrt(1 - beta2^t)
};

}  // namespace annulus
