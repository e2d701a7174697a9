#include "kernels/activation.h"
#include "kernels/device/pack.h"

namespace annulus::kernels::cuda {
namespace {

struct ReluForward {
  const float* x;
  float* y;

  template <int Width>
  __device__ void operator()(std::size_t element) const {
    Pack<Width> pack = load<Width>(x + element);
    for (float& value : pack.value) value = value <= 0 ? 0 : value;  // false for NaN, which stays
    store(y + element, pack);
  }
};

struct ReluBackward {
  const float* dy;
  const float* y;
  float* dx;

  template <int Width>
  __device__ void operator()(std::size_t element) const {
    Pack<Width> gradient = load<Width>(dy + element);
    const Pack<Width> output = load<Width>(y + element);
    for (int i = 0; i < Width; ++i)
      if (!(output.value[i] > 0)) gradient.value[i] = 0;
    store(dx + element, gradient);
  }
};

}  // namespace

void relu_forward(StreamView stream, const Tensor& x, const Tensor& y) {
  for_each_pack(stream, x.elements(), {x.data(), y.data()}, ReluForward{x.as<float>(), y.as<float>()});
}

void relu_backward(StreamView stream, const Tensor& dy, const Tensor& y, const Tensor& dx) {
  for_each_pack(stream, dy.elements(), {dy.data(), y.data(), dx.data()},
                ReluBackward{dy.as<float>(), y.as<float>(), dx.as<float>()});
}

}  // namespace annulus::kernels::cuda
