#include "kernels/device/pack.h"
#include "kernels/pool2d.h"

namespace annulus::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;

// Where a pack of channels is: index counts packs of [images, height, width, channels].
struct Place {
  std::size_t image, row, column, channel;

  __device__ Place(std::size_t index, std::size_t height, std::size_t width, std::size_t packs,
                   int pack_width) {
    channel = index % packs * pack_width;
    column = index / packs % width;
    row = index / packs / width % height;
    image = index / packs / width / height;
  }
};

// One thread per pack of output channels, channels fastest, so that neighbours read neighbours.
template <int Width, class T>
__global__ void max_pool2d_forward_kernel(Pool2dShape shape, std::size_t out_height, std::size_t out_width,
                                          std::size_t outputs, const T* x, T* y, std::uint8_t* argmax) {
  for (std::size_t i = global_thread(); i < outputs / Width; i += global_threads()) {
    const Place at(i, out_height, out_width, shape.channels / Width, Width);
    const T* corner =
        x +
        ((at.image * shape.in_height + at.row * shape.stride) * shape.in_width + at.column * shape.stride) *
            shape.channels +
        at.channel;
    Pack<Width> largest = load_float<Width>(corner);
    Pack<Width, std::uint8_t> position = {};
    for (std::size_t r = 0; r < shape.window; ++r) {
      for (std::size_t c = 0; c < shape.window; ++c) {
        const Pack<Width> value = load_float<Width>(corner + (r * shape.in_width + c) * shape.channels);
#pragma unroll
        for (int e = 0; e < Width; ++e) {
          if (value.value[e] > largest.value[e] || (isnan(value.value[e]) && !isnan(largest.value[e]))) {
            largest.value[e] = value.value[e];
            position.value[e] = static_cast<std::uint8_t>(r * shape.window + c);
          }
        }
      }
    }
    store_float(y + i * Width, largest);
    store(argmax + i * Width, position);
  }
}

// One thread per pack of input channels: it gathers from the windows that cover it, in window order, so that
// no two threads add to the same place.
template <int Width, class T>
__global__ void max_pool2d_backward_kernel(Pool2dShape shape, std::size_t out_height, std::size_t out_width,
                                           std::size_t inputs, const T* dy, const std::uint8_t* argmax,
                                           const T* relu_output, T* dx) {
  for (std::size_t i = global_thread(); i < inputs / Width; i += global_threads()) {
    const Place at(i, shape.in_height, shape.in_width, shape.channels / Width, Width);
    const std::size_t first_row = at.row < shape.window ? 0 : (at.row - shape.window) / shape.stride + 1;
    const std::size_t first_column =
        at.column < shape.window ? 0 : (at.column - shape.window) / shape.stride + 1;
    Pack<Width> gradient = {};
    for (std::size_t r = first_row; r < out_height && r * shape.stride <= at.row; ++r) {
      for (std::size_t c = first_column; c < out_width && c * shape.stride <= at.column; ++c) {
        const std::size_t position =
            (at.row - r * shape.stride) * shape.window + at.column - c * shape.stride;
        const std::size_t out = ((at.image * out_height + r) * out_width + c) * shape.channels + at.channel;
        const Pack<Width, std::uint8_t> from = load<Width>(argmax + out);
        const Pack<Width> upstream = load_float<Width>(dy + out);
        Pack<Width> mask;
#pragma unroll
        for (float& each : mask.value) each = 1;
        if (relu_output != nullptr) mask = load_float<Width>(relu_output + out);
#pragma unroll
        for (int e = 0; e < Width; ++e)
          if (from.value[e] == position && mask.value[e] > 0) gradient.value[e] += upstream.value[e];
      }
    }
    store_float(dx + i * Width, gradient);
  }
}

// One thread per image and channel; f64 so that the order of the sum hardly matters.
template <class T>
__global__ void global_average_pool_forward_kernel(std::size_t outputs, std::size_t pixels,
                                                   std::size_t channels, const T* x, T* y) {
  for (std::size_t i = global_thread(); i < outputs; i += global_threads()) {
    const T* from = x + i / channels * pixels * channels + i % channels;
    double total = 0;
    for (std::size_t p = 0; p < pixels; ++p) total += to_float(from[p * channels]);
    y[i] = from_float<T>(static_cast<float>(total / static_cast<double>(pixels)));
  }
}

template <int Width, class T>
__global__ void global_average_pool_backward_kernel(std::size_t inputs, std::size_t pixels,
                                                    std::size_t channels, const T* dy, T* dx) {
  const std::size_t packs = channels / Width;
  for (std::size_t i = global_thread(); i < inputs / Width; i += global_threads()) {
    const std::size_t image = i / (pixels * packs);
    Pack<Width> gradient = load_float<Width>(dy + image * channels + i % packs * Width);
    for (float& each : gradient.value) each /= static_cast<float>(pixels);
    store_float(dx + i * Width, gradient);
  }
}

// Packs of channels need whole ones, and aligned images.
template <class T>
bool packed(std::size_t channels, std::initializer_list<Tensor> arrays) {
  return channels % kPackWidth<T> == 0 &&
         elements_before_first_pack(kPackWidth<T>, kPackWidth<T>, arrays) == 0;
}

}  // namespace

void max_pool2d_forward(StreamView stream, const Pool2dShape& shape, const Tensor& x, const Tensor& y,
                        const Tensor& argmax) {
  visit_activation(x.dtype(), [&]<class T>(T) {
    with_pack_width<T>(
        packed<T>(shape.channels, {x, y, argmax}), [&]<int Width>(std::integral_constant<int, Width>) {
          launch(stream, {grid_stride_blocks(y.elements() / Width, kThreads)}, kThreads, 0,
                 max_pool2d_forward_kernel<Width, T>, shape, shape.out_height(), shape.out_width(),
                 y.elements(), x.as<T>(), y.as<T>(), argmax.as<std::uint8_t>());
        });
  });
}

void max_pool2d_backward(StreamView stream, const Pool2dShape& shape, const Tensor& dy, const Tensor& argmax,
                         const Tensor& relu_output, const Tensor& dx) {
  visit_activation(dy.dtype(), [&]<class T>(T) {
    with_pack_width<T>(packed<T>(shape.channels, {dy, argmax, relu_output, dx}),
                       [&]<int Width>(std::integral_constant<int, Width>) {
                         launch(stream, {grid_stride_blocks(dx.elements() / Width, kThreads)}, kThreads, 0,
                                max_pool2d_backward_kernel<Width, T>, shape, shape.out_height(),
                                shape.out_width(), dx.elements(), dy.as<T>(), argmax.as<std::uint8_t>(),
                                relu_output.empty() ? nullptr : relu_output.as<T>(), dx.as<T>());
                       });
  });
}

void global_average_pool_forward(StreamView stream, const Tensor& x, const Tensor& y) {
  const Shape& shape = x.shape();
  visit_activation(x.dtype(), [&]<class T>(T) {
    launch(stream, {grid_stride_blocks(y.elements(), kThreads)}, kThreads, 0,
           global_average_pool_forward_kernel<T>, y.elements(), shape[1] * shape[2], shape[3], x.as<T>(),
           y.as<T>());
  });
}

void global_average_pool_backward(StreamView stream, const Tensor& dy, const Tensor& dx) {
  const Shape& shape = dx.shape();
  visit_activation(dy.dtype(), [&]<class T>(T) {
    with_pack_width<T>(packed<T>(shape[3], {dy, dx}), [&]<int Width>(std::integral_constant<int, Width>) {
      launch(stream, {grid_stride_blocks(dx.elements() / Width, kThreads)}, kThreads, 0,
             global_average_pool_backward_kernel<Width, T>, dx.elements(), shape[1] * shape[2], shape[3],
             dy.as<T>(), dx.as<T>());
    });
  });
}

}  // namespace annulus::kernels::cuda
