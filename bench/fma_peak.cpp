#include "bench/fma_peak.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace annulus::bench {
namespace {

#if defined(__x86_64__)

// Twelve independent chains: two units with a latency of four or five cycles need eight to ten.
constexpr std::size_t kChains = 12;

// Named variables rather than an array, because compilers keep those in registers.
#define ANNULUS_FMA_LOOP(name, instruction_set, vector, broadcast, multiply_add)               \
  __attribute__((target(instruction_set))) void name(std::size_t iterations) {                 \
    const vector x = broadcast(0.5f), y = broadcast(1.0f);                                     \
    vector a = y, b = y, c = y, d = y, e = y, f = y, g = y, h = y, i = y, j = y, k = y, l = y; \
    for (std::size_t n = 0; n < iterations; ++n) {                                             \
      a = multiply_add(a, x, y), b = multiply_add(b, x, y), c = multiply_add(c, x, y);         \
      d = multiply_add(d, x, y), e = multiply_add(e, x, y), f = multiply_add(f, x, y);         \
      g = multiply_add(g, x, y), h = multiply_add(h, x, y), i = multiply_add(i, x, y);         \
      j = multiply_add(j, x, y), k = multiply_add(k, x, y), l = multiply_add(l, x, y);         \
    }                                                                                          \
    asm volatile("" ::"x"(a), "x"(b), "x"(c), "x"(d), "x"(e), "x"(f));                         \
    asm volatile("" ::"x"(g), "x"(h), "x"(i), "x"(j), "x"(k), "x"(l));                         \
  }

ANNULUS_FMA_LOOP(run_avx512, "avx512f", __m512, _mm512_set1_ps, _mm512_fmadd_ps)
ANNULUS_FMA_LOOP(run_avx2, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps)

/// GFLOP/s of `loop` with `lanes` floats in a vector.
double median_rate(void (*loop)(std::size_t), std::size_t lanes) {
  using Clock = std::chrono::steady_clock;
  const auto seconds_of = [loop](std::size_t iterations) {
    const auto start = Clock::now();
    loop(iterations);
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  std::size_t iterations = 1000;
  while (seconds_of(iterations) < 0.01) iterations *= 2;
  std::array<double, 9> rates;
  for (double& rate : rates)
    rate = 2e-9 * static_cast<double>(kChains * lanes * iterations) / seconds_of(iterations);
  std::nth_element(rates.begin(), rates.begin() + rates.size() / 2, rates.end());
  return rates[rates.size() / 2];
}

#endif

}  // namespace

double measure_fma_peak() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return median_rate(run_avx512, 16);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return median_rate(run_avx2, 8);
#endif
  return 0;
}

}  // namespace annulus::bench
