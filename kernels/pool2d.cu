#include "kernels/device/launch.h"
#include "kernels/pool2d.h"

namespace annulus::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;

// One thread per output element, channels fastest, so that neighbours read neighbours.
__global__ void max_pool2d_forward_kernel(Pool2dShape shape, std::size_t out_height, std::size_t out_width,
                                          std::size_t outputs, const float* x, float* y,
                                          std::uint8_t* argmax) {
  for (std::size_t i = global_thread(); i < outputs; i += global_threads()) {
    const std::size_t channel = i % shape.channels;
    const std::size_t column = i / shape.channels % out_width * shape.stride;
    const std::size_t row = i / shape.channels / out_width % out_height * shape.stride;
    const std::size_t image = i / shape.channels / out_width / out_height;
    const float* corner =
        x + ((image * shape.in_height + row) * shape.in_width + column) * shape.channels + channel;
    float largest = corner[0];
    std::size_t position = 0;
    for (std::size_t r = 0; r < shape.window; ++r) {
      for (std::size_t c = 0; c < shape.window; ++c) {
        const float value = corner[(r * shape.in_width + c) * shape.channels];
        if (value > largest || (isnan(value) && !isnan(largest))) {
          largest = value;
          position = r * shape.window + c;
        }
      }
    }
    y[i] = largest;
    argmax[i] = static_cast<std::uint8_t>(position);
  }
}

// One thread per input element: it gathers from the windows that cover it, in window order, so that no
// two threads add to the same place.
__global__ void max_pool2d_backward_kernel(Pool2dShape shape, std::size_t out_height, std::size_t out_width,
                                           std::size_t inputs, const float* dy, const std::uint8_t* argmax,
                                           const float* relu_output, float* dx) {
  for (std::size_t i = global_thread(); i < inputs; i += global_threads()) {
    const std::size_t channel = i % shape.channels;
    const std::size_t column = i / shape.channels % shape.in_width;
    const std::size_t row = i / shape.channels / shape.in_width % shape.in_height;
    const std::size_t image = i / shape.channels / shape.in_width / shape.in_height;
    const std::size_t first_row = row < shape.window ? 0 : (row - shape.window) / shape.stride + 1;
    const std::size_t first_column = column < shape.window ? 0 : (column - shape.window) / shape.stride + 1;
    float gradient = 0;
    for (std::size_t r = first_row; r < out_height && r * shape.stride <= row; ++r) {
      for (std::size_t c = first_column; c < out_width && c * shape.stride <= column; ++c) {
        const std::size_t position = (row - r * shape.stride) * shape.window + column - c * shape.stride;
        const std::size_t out = ((image * out_height + r) * out_width + c) * shape.channels + channel;
        if (argmax[out] != position) continue;
        if (relu_output != nullptr && !(relu_output[out] > 0)) continue;
        gradient += dy[out];
      }
    }
    dx[i] = gradient;
  }
}

// One thread per image and channel; f64 so that the order of the sum hardly matters.
__global__ void global_average_pool_forward_kernel(std::size_t outputs, std::size_t pixels,
                                                   std::size_t channels, const float* x, float* y) {
  for (std::size_t i = global_thread(); i < outputs; i += global_threads()) {
    const float* from = x + i / channels * pixels * channels + i % channels;
    double total = 0;
    for (std::size_t p = 0; p < pixels; ++p) total += from[p * channels];
    y[i] = static_cast<float>(total / static_cast<double>(pixels));
  }
}

__global__ void global_average_pool_backward_kernel(std::size_t inputs, std::size_t pixels,
                                                    std::size_t channels, const float* dy, float* dx) {
  for (std::size_t i = global_thread(); i < inputs; i += global_threads())
    dx[i] = dy[i / (pixels * channels) * channels + i % channels] / static_cast<float>(pixels);
}

}  // namespace

void max_pool2d_forward(StreamView stream, const Pool2dShape& shape, const Tensor& x, const Tensor& y,
                        const Tensor& argmax) {
  launch(stream, {grid_stride_blocks(y.elements(), kThreads)}, kThreads, 0, max_pool2d_forward_kernel, shape,
         shape.out_height(), shape.out_width(), y.elements(), x.as<float>(), y.as<float>(),
         argmax.as<std::uint8_t>());
}

void max_pool2d_backward(StreamView stream, const Pool2dShape& shape, const Tensor& dy, const Tensor& argmax,
                         const Tensor& relu_output, const Tensor& dx) {
  launch(stream, {grid_stride_blocks(dx.elements(), kThreads)}, kThreads, 0, max_pool2d_backward_kernel,
         shape, shape.out_height(), shape.out_width(), dx.elements(), dy.as<float>(),
         argmax.as<std::uint8_t>(), relu_output.empty() ? nullptr : relu_output.as<float>(), dx.as<float>());
}

void global_average_pool_forward(StreamView stream, const Tensor& x, const Tensor& y) {
  const Shape& shape = x.shape();
  launch(stream, {grid_stride_blocks(y.elements(), kThreads)}, kThreads, 0,
         global_average_pool_forward_kernel, y.elements(), shape[1] * shape[2], shape[3], x.as<float>(),
         y.as<float>());
}

void global_average_pool_backward(StreamView stream, const Tensor& dy, const Tensor& dx) {
  const Shape& shape = dx.shape();
  launch(stream, {grid_stride_blocks(dx.elements(), kThreads)}, kThreads, 0,
         global_average_pool_backward_kernel, dx.elements(), shape[1] * shape[2], shape[3], dy.as<float>(),
         dx.as<float>());
}

}  // namespace annulus::kernels::cuda
