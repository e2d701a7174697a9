#include <cmath>

#include "kernels/check.h"
#include "kernels/dispatch.h"
#include "kernels/reduce.h"

namespace annulus::kernels {

std::size_t reduce_workspace_bytes(Device device, std::size_t elements) {
#if ANNULUS_HAS_CUDA
  if (device.is_cuda()) return cuda::reduce_workspace_bytes(elements);
#endif
  static_cast<void>(device);
  return cpu::reduce_workspace_bytes(elements);
}

void sum(StreamView stream, const Tensor& x, void* workspace, const Tensor& result) {
  check_tensor("sum", "x", x, x.shape(), stream.device());
  check_tensor("sum", "result", result, result.shape(), stream.device());
  ANNULUS_DISPATCH(stream, sum, x, workspace, result);
}

void squared_norm(StreamView stream, const Tensor& x, void* workspace, const Tensor& result) {
  check_tensor("squared_norm", "x", x, x.shape(), stream.device());
  check_tensor("squared_norm", "result", result, result.shape(), stream.device());
  ANNULUS_DISPATCH(stream, squared_norm, x, workspace, result);
}

void first_non_finite(StreamView stream, const Tensor& x, void* workspace, const Tensor& result) {
  check_tensor("first_non_finite", "x", x, x.shape(), stream.device());
  check_tensor("first_non_finite", "result", result, result.shape(), stream.device(), DType::i64);
  ANNULUS_DISPATCH(stream, first_non_finite, x, workspace, result);
}

namespace cpu {

std::size_t reduce_workspace_bytes(std::size_t) { return 0; }

void sum(StreamView, const Tensor& x, void*, const Tensor& result) {
  double total = 0;
  for (std::size_t i = 0; i < x.elements(); ++i) total += static_cast<double>(x.as<float>()[i]);
  *result.as<float>() = static_cast<float>(total);
}

void squared_norm(StreamView, const Tensor& x, void*, const Tensor& result) {
  double total = 0;
  for (std::size_t i = 0; i < x.elements(); ++i) {
    const double value = static_cast<double>(x.as<float>()[i]);
    total += value * value;
  }
  *result.as<float>() = static_cast<float>(total);
}

void first_non_finite(StreamView, const Tensor& x, void*, const Tensor& result) {
  const float* values = x.as<float>();
  std::int64_t found = -1;
  for (std::size_t i = 0; i < x.elements() && found < 0; ++i)
    if (!std::isfinite(values[i])) found = static_cast<std::int64_t>(i);
  *result.as<std::int64_t>() = found;
}

}  // namespace cpu
}  // namespace annulus::kernels
