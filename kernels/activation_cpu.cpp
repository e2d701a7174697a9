#include "kernels/activation.h"
#include "kernels/check.h"
#include "kernels/dispatch.h"
#include "kernels/multiversion_cpu.h"

namespace annulus::kernels {

void relu_forward(StreamView stream, const Tensor& x, const Tensor& y) {
  const DType dtype = check_activation("relu_forward", "x", x, stream.device());
  check_tensor("relu_forward", "y", y, x.shape(), stream.device(), dtype);
  ANNULUS_DISPATCH(stream, relu_forward, x, y);
}

void relu_backward(StreamView stream, const Tensor& dy, const Tensor& y, const Tensor& dx) {
  const DType dtype = check_activation("relu_backward", "dy", dy, stream.device());
  check_tensor("relu_backward", "y", y, dy.shape(), stream.device(), dtype);
  check_tensor("relu_backward", "dx", dx, dy.shape(), stream.device(), dtype);
  ANNULUS_DISPATCH(stream, relu_backward, dy, y, dx);
}

namespace cpu {
namespace {

ANNULUS_MULTIVERSION void relu_forward_loop(std::size_t count, const float* x, float* y) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) y[i] = x[i] < 0 ? 0 : x[i];  // NaN is not below 0
}

ANNULUS_MULTIVERSION void relu_backward_loop(std::size_t count, const float* dy, const float* y, float* dx) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) dx[i] = y[i] > 0 ? dy[i] : 0;
}

}  // namespace

void relu_forward(StreamView, const Tensor& x, const Tensor& y) {
  relu_forward_loop(x.elements(), x.as<float>(), y.as<float>());
}

void relu_backward(StreamView, const Tensor& dy, const Tensor& y, const Tensor& dx) {
  relu_backward_loop(dy.elements(), dy.as<float>(), y.as<float>(), dx.as<float>());
}

}  // namespace cpu
}  // namespace annulus::kernels
