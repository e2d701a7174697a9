// The sum over ranks in the one order that every world size and bucket size shares.
#pragma once

#include <cstddef>

#include "core/base/dtype.h"
#include "core/base/stream.h"

namespace annulus {

/// Sums `count` elements of `ranks` sources and writes the sums to each of `copies` destinations, which may
/// be sources. The tree is the binary counter's: with `left` the largest power of two below `ranks`, the sum
/// of the first `left` sources plus the sum of the others, both by the same rule: (0+1)+2,
/// ((0+1)+(2+3))+(4+5). bf16 and f16 are added in f32 and rounded once; integers wrap around.
void ordered_sum(const std::byte* const* sources, int ranks, std::byte* const* destinations, int copies,
                 std::size_t count, DType dtype);

/// The same on a CUDA device, of elements in its memory, in the order of `stream`: adds the `count` elements
/// at `own`, which are rank `rank`'s, and those of all other ranks, and leaves the sums at `own`. The others'
/// begin at `received`, in the order of ranks, `stride` elements apart. The bits are those of the CPU but for
/// NaN, which stays NaN. Up to kMostRanksOnDevice ranks. Part of builds with CUDA.
void ordered_sum_on_device(StreamView stream, void* own, const void* received, std::size_t stride, int rank,
                           int ranks, std::size_t count, DType dtype);
inline constexpr int kMostRanksOnDevice = 1023;

}  // namespace annulus
