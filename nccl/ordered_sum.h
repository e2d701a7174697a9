// The sum over ranks in the one order that every world size and bucket size shares.
#pragma once

#include <cstddef>

#include "core/base/dtype.h"

namespace annulus {

/// Sums `count` elements of `ranks` sources and writes the sums to each of `copies` destinations, which may
/// be sources. The tree is the binary counter's: with `left` the largest power of two below `ranks`, the sum
/// of the first `left` sources plus the sum of the others, both by the same rule: (0+1)+2,
/// ((0+1)+(2+3))+(4+5). bf16 and f16 are added in f32 and rounded once; integers wrap around.
void ordered_sum(const std::byte* const* sources, int ranks, std::byte* const* destinations, int copies,
                 std::size_t count, DType dtype);

}  // namespace annulus
