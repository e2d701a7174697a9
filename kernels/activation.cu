#include "kernels/activation.h"
#include "kernels/device/pack.h"

namespace annulus::kernels::cuda {
namespace {

template <class T>
struct ReluForward {
  const T* x;
  T* y;

  template <int Width>
  __device__ void operator()(std::size_t element) const {
    Pack<Width> pack = load_float<Width>(x + element);
    for (float& value : pack.value) value = value <= 0 ? 0 : value;  // false for NaN, which stays
    store_float(y + element, pack);
  }
};

template <class T>
struct ReluBackward {
  const T* dy;
  const T* y;
  T* dx;

  template <int Width>
  __device__ void operator()(std::size_t element) const {
    Pack<Width> gradient = load_float<Width>(dy + element);
    const Pack<Width> output = load_float<Width>(y + element);
    for (int i = 0; i < Width; ++i)
      if (!(output.value[i] > 0)) gradient.value[i] = 0;
    store_float(dx + element, gradient);
  }
};

}  // namespace

void relu_forward(StreamView stream, const Tensor& x, const Tensor& y) {
  visit_activation(x.dtype(), [&]<class T>(T) {
    for_each_pack<kPackWidth<T>>(stream, x.elements(), {x, y}, ReluForward<T>{x.as<T>(), y.as<T>()});
  });
}

void relu_backward(StreamView stream, const Tensor& dy, const Tensor& y, const Tensor& dx) {
  visit_activation(dy.dtype(), [&]<class T>(T) {
    for_each_pack<kPackWidth<T>>(stream, dy.elements(), {dy, y, dx},
                                 ReluBackward<T>{dy.as<T>(), y.as<T>(), dx.as<T>()});
  });
}

}  // namespace annulus::kernels::cuda
