// The most f32 arithmetic that one core can do, measured: what a bench relates its GFLOP/s to.
#pragma once

namespace annulus::bench {

/// GFLOP/s (10^9 additions and multiplications a second) of this thread in a loop of independent fused
/// multiply-adds on registers, with the widest vectors that the core has: the median of runs of 10 ms. 0 on
/// a processor without a fused multiply-add that this function knows.
double measure_fma_peak();

}  // namespace annulus::bench
