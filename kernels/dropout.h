// Dropout with a mask that is recomputed, never stored: element e of sample s is dropped by the random
// number at index e of a Philox sequence keyed by seed, step, layer and the position of s in the global
// batch. N. Srivastava et al., "Dropout", JMLR 15 (2014).
#pragma once

#include <cstdint>

#include "core/base/philox.h"
#include "core/base/step_values.h"
#include "core/base/stream.h"
#include "core/base/tensor.h"

namespace annulus::kernels {

/// Names the random numbers of one dropout layer in one step.
struct DropoutKey {
  std::uint64_t seed = 0;
  const StepValues* values = nullptr;  ///< in memory of the stream's device; its step is read
  std::uint32_t layer = 0;
  std::uint64_t first_sample = 0;  ///< position of row 0 in the global batch, so that ranks do not matter
};

/// y = x / (1 - probability) where kept, 0 where dropped; x and y are [batch, ...], f32 or (on CUDA
/// devices) bf16, and may alias.
/// With i = position of the row in the global batch and e = the element's index in its row, an element
/// is dropped if Philox(seed, dropout, values->step, layer * 2^32 + i).uniform(e) < probability. The same
/// call with dy for x and dx for y is the gradient.
void dropout(StreamView stream, const DropoutKey& key, float probability, const Tensor& x, const Tensor& y);

namespace cpu {
decltype(kernels::dropout) dropout;
}
namespace cuda {
decltype(kernels::dropout) dropout;
}

}  // namespace annulus::kernels
