#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/check.h"
#include "kernels/dispatch.h"
#include "kernels/multiversion_cpu.h"
#include "kernels/reduce.h"

namespace annulus::kernels {
namespace {

void check_result(const char* op, const Tensor& result, Device device, DType dtype = DType::f32) {
  check_tensor(op, "result", result, result.shape(), device, dtype);
  if (result.elements() != 1) [[unlikely]]
    fail<ShapeError>("{}: result must have one element, but its shape is {}", op, result.shape().to_string());
}

}  // namespace

std::size_t reduce_workspace_bytes(Device device, std::size_t elements) {
#if ANNULUS_HAS_CUDA
  if (device.is_cuda()) return cuda::reduce_workspace_bytes(elements);
#endif
  static_cast<void>(device);
  return cpu::reduce_workspace_bytes(elements);
}

void sum(StreamView stream, const Tensor& x, void* workspace, const Tensor& result) {
  check_activation("sum", "x", x, stream.device());
  check_result("sum", result, stream.device());
  ANNULUS_DISPATCH(stream, sum, x, workspace, result);
}

void squared_norm(StreamView stream, const Tensor& x, void* workspace, const Tensor& result) {
  check_activation("squared_norm", "x", x, stream.device());
  check_result("squared_norm", result, stream.device());
  ANNULUS_DISPATCH(stream, squared_norm, x, workspace, result);
}

void absmax(StreamView stream, const Tensor& x, void* workspace, const Tensor& result) {
  check_activation("absmax", "x", x, stream.device());
  check_result("absmax", result, stream.device());
  ANNULUS_DISPATCH(stream, absmax, x, workspace, result);
}

void first_non_finite(StreamView stream, const Tensor& x, void* workspace, const Tensor& result) {
  check_activation("first_non_finite", "x", x, stream.device());
  check_result("first_non_finite", result, stream.device(), DType::i64);
  ANNULUS_DISPATCH(stream, first_non_finite, x, workspace, result);
}

namespace cpu {
namespace {

// Sixteen sums in double, whatever the width of the machine's vectors, then a tree over them.
constexpr std::size_t kLanes = 16;

template <std::size_t N>
double tree_sum(const double (&lanes)[N]) {
  double sums[N];
  std::copy_n(lanes, N, sums);
  for (std::size_t half = N / 2; half > 0; half /= 2)
    for (std::size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  return sums[0];
}

ANNULUS_MULTIVERSION void add_to_lanes(std::size_t count, const float* x, double* lanes) {
  for (std::size_t i = 0; i < count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += static_cast<double>(x[i + lane]);
}

ANNULUS_MULTIVERSION void add_squares_to_lanes(std::size_t count, const float* x, double* lanes) {
  for (std::size_t i = 0; i < count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const double value = static_cast<double>(x[i + lane]);
      lanes[lane] += value * value;
    }
}

// `add` takes whole groups of lanes; the rest is padded with zeros.
template <class Add>
float reduce(const Tensor& x, const Add& add) {
  double lanes[kLanes] = {};
  const std::size_t count = x.elements(), whole = count - count % kLanes;
  add(whole, x.as<float>(), lanes);
  float rest[kLanes] = {};
  std::copy_n(x.as<float>() + whole, count - whole, rest);
  add(kLanes, rest, lanes);
  return static_cast<float>(tree_sum(lanes));
}

// The bits of a magnitude order as numbers do, and NaN's are the largest.
ANNULUS_MULTIVERSION std::uint32_t largest_magnitude(std::size_t count, const float* x) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu);
  return largest;
}

// Whether a block has a NaN or an infinity: an exponent of ones.
ANNULUS_MULTIVERSION bool has_non_finite(std::size_t count, const float* x) {
  std::uint32_t found = 0;
  for (std::size_t i = 0; i < count; ++i)
    found |= (std::bit_cast<std::uint32_t>(x[i]) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  return found != 0;
}

}  // namespace

std::size_t reduce_workspace_bytes(std::size_t) { return 0; }

void sum(StreamView, const Tensor& x, void*, const Tensor& result) {
  *result.as<float>() = reduce(x, add_to_lanes);
}

void squared_norm(StreamView, const Tensor& x, void*, const Tensor& result) {
  *result.as<float>() = reduce(x, add_squares_to_lanes);
}

void absmax(StreamView, const Tensor& x, void*, const Tensor& result) {
  *result.as<float>() = std::bit_cast<float>(largest_magnitude(x.elements(), x.as<float>()));
}

void first_non_finite(StreamView, const Tensor& x, void*, const Tensor& result) {
  constexpr std::size_t kBlock = 1024;
  const float* values = x.as<float>();
  const std::size_t count = x.elements();
  std::int64_t& found = *result.as<std::int64_t>();
  found = -1;
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t size = std::min(kBlock, count - first);
    if (!has_non_finite(size, values + first)) continue;
    std::size_t i = first;
    while (std::isfinite(values[i])) ++i;
    found = static_cast<std::int64_t>(i);
    return;
  }
}

}  // namespace cpu
}  // namespace annulus::kernels
