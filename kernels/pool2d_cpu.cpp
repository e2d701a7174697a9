#include <algorithm>
#include <limits>

#include "kernels/check.h"
#include "kernels/dispatch.h"
#include "kernels/multiversion_cpu.h"
#include "kernels/pool2d.h"

namespace annulus::kernels {

void Pool2dShape::check() const {
  require<ShapeError>(in_height > 0 && in_width > 0 && channels > 0,
                      "pool2d: the image must not be empty, but is {} x {} x {}", in_height, in_width,
                      channels);
  require<ShapeError>(stride > 0, "pool2d: the stride must be at least 1");
  require<ShapeError>(window > 0 && window <= 15, "pool2d: the window must be 1 to 15, not {}", window);
  require<ShapeError>(window <= in_height && window <= in_width,
                      "pool2d: a window of {} does not fit into an image of {} x {}", window, in_height,
                      in_width);
}

void max_pool2d_forward(StreamView stream, const Pool2dShape& shape, const Tensor& x, const Tensor& y,
                        const Tensor& argmax) {
  shape.check();
  const Device device = stream.device();
  check_tensor("max_pool2d_forward", "x", x, shape.input(), device);
  check_tensor("max_pool2d_forward", "y", y, shape.output(), device);
  check_tensor("max_pool2d_forward", "argmax", argmax, shape.output(), device, DType::u8);
  ANNULUS_DISPATCH(stream, max_pool2d_forward, shape, x, y, argmax);
}

void max_pool2d_backward(StreamView stream, const Pool2dShape& shape, const Tensor& dy, const Tensor& argmax,
                         const Tensor& relu_output, const Tensor& dx) {
  shape.check();
  const Device device = stream.device();
  check_tensor("max_pool2d_backward", "dy", dy, shape.output(), device);
  check_tensor("max_pool2d_backward", "argmax", argmax, shape.output(), device, DType::u8);
  if (!relu_output.empty())
    check_tensor("max_pool2d_backward", "relu_output", relu_output, shape.output(), device);
  check_tensor("max_pool2d_backward", "dx", dx, shape.input(), device);
  ANNULUS_DISPATCH(stream, max_pool2d_backward, shape, dy, argmax, relu_output, dx);
}

void global_average_pool_forward(StreamView stream, const Tensor& x, const Tensor& y) {
  check_rank("global_average_pool_forward", "x", x, 4);
  check_tensor("global_average_pool_forward", "x", x, x.shape(), stream.device());
  check_tensor("global_average_pool_forward", "y", y, {x.shape()[0], x.shape()[3]}, stream.device());
  ANNULUS_DISPATCH(stream, global_average_pool_forward, x, y);
}

void global_average_pool_backward(StreamView stream, const Tensor& dy, const Tensor& dx) {
  check_rank("global_average_pool_backward", "dx", dx, 4);
  check_tensor("global_average_pool_backward", "dx", dx, dx.shape(), stream.device());
  check_tensor("global_average_pool_backward", "dy", dy, {dx.shape()[0], dx.shape()[3]}, stream.device());
  ANNULUS_DISPATCH(stream, global_average_pool_backward, dy, dx);
}

namespace cpu {
namespace {

ANNULUS_MULTIVERSION void max_pool2d_forward_loop(const Pool2dShape& s, const float* x, float* y,
                                                  std::uint8_t* argmax) {
  const std::size_t row_stride = s.in_width * s.channels;
  for (std::size_t image = 0; image < s.batch; ++image, x += s.in_height * row_stride)
    for (std::size_t row = 0; row < s.out_height(); ++row)
      for (std::size_t column = 0; column < s.out_width(); ++column, y += s.channels, argmax += s.channels) {
        const float* corner = x + row * s.stride * row_stride + column * s.stride * s.channels;
        for (std::size_t channel = 0; channel < s.channels; ++channel) {
          y[channel] = corner[channel];
          argmax[channel] = 0;
        }
        for (std::size_t position = 1; position < s.window * s.window; ++position) {
          const float* from = corner + position / s.window * row_stride + position % s.window * s.channels;
          for (std::size_t channel = 0; channel < s.channels; ++channel) {
            // Not "from > y": a NaN takes the place of a number, and nothing takes the place of a NaN.
            const bool larger = !(y[channel] >= from[channel]) && y[channel] == y[channel];
            y[channel] = larger ? from[channel] : y[channel];
            argmax[channel] = larger ? static_cast<std::uint8_t>(position) : argmax[channel];
          }
        }
      }
}

ANNULUS_MULTIVERSION void max_pool2d_backward_loop(const Pool2dShape& s, const float* dy,
                                                   const std::uint8_t* argmax, const float* relu_output,
                                                   float* dx) {
  const std::size_t row_stride = s.in_width * s.channels;
  std::fill_n(dx, s.batch * s.in_height * row_stride, 0.0f);
  for (std::size_t image = 0; image < s.batch; ++image, dx += s.in_height * row_stride)
    for (std::size_t row = 0; row < s.out_height(); ++row)
      for (std::size_t column = 0; column < s.out_width(); ++column) {
        float* corner = dx + row * s.stride * row_stride + column * s.stride * s.channels;
        for (std::size_t channel = 0; channel < s.channels; ++channel) {
          const std::size_t position = argmax[channel];
          const bool passes = relu_output == nullptr || relu_output[channel] > 0;
          corner[position / s.window * row_stride + position % s.window * s.channels + channel] +=
              passes ? dy[channel] : 0;
        }
        dy += s.channels;
        argmax += s.channels;
        if (relu_output != nullptr) relu_output += s.channels;
      }
}

}  // namespace

void max_pool2d_forward(StreamView, const Pool2dShape& shape, const Tensor& x, const Tensor& y,
                        const Tensor& argmax) {
  max_pool2d_forward_loop(shape, x.as<float>(), y.as<float>(), argmax.as<std::uint8_t>());
}

void max_pool2d_backward(StreamView, const Pool2dShape& shape, const Tensor& dy, const Tensor& argmax,
                         const Tensor& relu_output, const Tensor& dx) {
  max_pool2d_backward_loop(shape, dy.as<float>(), argmax.as<std::uint8_t>(), relu_output.as<float>(),
                           dx.as<float>());
}

void global_average_pool_forward(StreamView, const Tensor& x, const Tensor& y) {
  const std::size_t pixels = x.shape()[1] * x.shape()[2], channels = x.shape()[3];
  const float* source = x.as<float>();
  float* target = y.as<float>();
  for (std::size_t image = 0; image < x.shape()[0]; ++image)
    for (std::size_t channel = 0; channel < channels; ++channel) {
      double total = 0;
      for (std::size_t pixel = 0; pixel < pixels; ++pixel)
        total += static_cast<double>(source[(image * pixels + pixel) * channels + channel]);
      target[image * channels + channel] = static_cast<float>(total / static_cast<double>(pixels));
    }
}

void global_average_pool_backward(StreamView, const Tensor& dy, const Tensor& dx) {
  const std::size_t pixels = dx.shape()[1] * dx.shape()[2], channels = dx.shape()[3];
  const float* source = dy.as<float>();
  float* target = dx.as<float>();
  const float size = static_cast<float>(pixels);
  for (std::size_t image = 0; image < dx.shape()[0]; ++image)
    for (std::size_t pixel = 0; pixel < pixels; ++pixel)
      for (std::size_t channel = 0; channel < channels; ++channel)
        target[(image * pixels + pixel) * channels + channel] = source[image * channels + channel] / size;
}

}  // namespace cpu
}  // namespace annulus::kernels
