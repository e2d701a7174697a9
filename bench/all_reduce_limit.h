// The machine's limit of an all-reduce between two cores, measured.
#pragma once

#include <cstddef>

#include "bench/all_reduce_timing.h"

namespace annulus::bench {

/// Times the least that any all-reduce of two ranks must do: two threads, on the cores of ranks 0 and 1, each
/// read two buffers of `count` f32 and write both sums, for half of the elements, and meet once at the end.
/// Timed and checked as time_all_reduce() does: each buffer was last written on its own core. The calling
/// process has no other threads before and after.
AllReduceTiming measure_all_reduce_limit(std::size_t count, double seconds);

}  // namespace annulus::bench
