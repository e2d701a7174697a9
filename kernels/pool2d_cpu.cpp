#include <algorithm>
#include <bit>
#include <cstdint>

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

// Calls visit(input offset of the window's first pixel, output offset) for every window, in order.
template <class Visit>
void for_each_window(const Pool2dShape& s, const Visit& visit) {
  const std::size_t out_height = s.out_height(), out_width = s.out_width();
  std::size_t output = 0;
  for (std::size_t image = 0; image < s.batch; ++image)
    for (std::size_t row = 0; row < out_height; ++row)
      for (std::size_t column = 0; column < out_width; ++column, output += s.channels)
        visit(((image * s.in_height + row * s.stride) * s.in_width + column * s.stride) * s.channels, output);
}

// The masks below keep the loops free of branches, without which they would not vectorise.
inline float choose(std::int32_t mask, float where_set, float elsewhere) {
  return std::bit_cast<float>((std::bit_cast<std::int32_t>(where_set) & mask) |
                              (std::bit_cast<std::int32_t>(elsewhere) & ~mask));
}

// All bits set where `best` stays: a NaN takes the place of a number, nothing takes the place of a NaN.
inline std::int32_t stays(float best, float value) {
  return -static_cast<std::int32_t>(best >= value) | -static_cast<std::int32_t>(best != best);
}

// y = maximum of four pixels, one vector of channels each.
ANNULUS_MULTIVERSION void maximum_of_four(std::size_t channels, const float* x0, const float* x1,
                                          const float* x2, const float* x3, float* y, std::uint8_t* argmax) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < channels; ++i) {
    const float others[3] = {x1[i], x2[i], x3[i]};
    float best = x0[i];
    std::int32_t position = 0;
    for (std::int32_t other = 0; other < 3; ++other) {
      const std::int32_t mask = stays(best, others[other]);
      best = choose(mask, best, others[other]);
      position = (position & mask) | ((other + 1) & ~mask);
    }
    y[i] = best;
    argmax[i] = static_cast<std::uint8_t>(position);
  }
}

// y = maximum of y and one more pixel.
ANNULUS_MULTIVERSION void maximum_with(std::size_t channels, const float* x, std::int32_t position, float* y,
                                       std::uint8_t* argmax) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < channels; ++i) {
    const std::int32_t mask = stays(y[i], x[i]);
    y[i] = choose(mask, y[i], x[i]);
    argmax[i] = static_cast<std::uint8_t>((argmax[i] & mask) | (position & ~mask));
  }
}

// dx = [dx +] dy where the window's maximum was at `position` and, if there is one, relu_output is positive.
// The two choices do not vary in the loop: the compiler makes a loop of each.
ANNULUS_MULTIVERSION void route_gradient(std::size_t channels, std::uint8_t position, bool accumulate,
                                         const std::uint8_t* argmax, const float* relu_output,
                                         const float* dy, float* dx) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < channels; ++i) {
    const bool passes = (argmax[i] == position) & (relu_output == nullptr || relu_output[i] > 0);
    dx[i] = (accumulate ? dx[i] : 0) + (passes ? dy[i] : 0);
  }
}

}  // namespace

void max_pool2d_forward(StreamView, const Pool2dShape& shape, const Tensor& x, const Tensor& y,
                        const Tensor& argmax) {
  const std::size_t channels = shape.channels, row_stride = shape.in_width * channels;
  for_each_window(shape, [&](std::size_t input, std::size_t output) {
    const float* corner = x.as<float>() + input;
    float* maximum = y.as<float>() + output;
    std::uint8_t* position = argmax.as<std::uint8_t>() + output;
    if (shape.window == 2) {
      maximum_of_four(channels, corner, corner + channels, corner + row_stride,
                      corner + row_stride + channels, maximum, position);
      return;
    }
    std::copy_n(corner, channels, maximum);
    std::fill_n(position, channels, std::uint8_t{0});
    for (std::size_t other = 1; other < shape.window * shape.window; ++other)
      maximum_with(channels, corner + other / shape.window * row_stride + other % shape.window * channels,
                   static_cast<std::int32_t>(other), maximum, position);
  });
}

void max_pool2d_backward(StreamView, const Pool2dShape& shape, const Tensor& dy, const Tensor& argmax,
                         const Tensor& relu_output, const Tensor& dx) {
  const std::size_t channels = shape.channels, row_stride = shape.in_width * channels;
  const bool overlap = shape.stride < shape.window;
  const bool covers = shape.stride == shape.window && shape.in_height % shape.window == 0 &&
                      shape.in_width % shape.window == 0;
  if (!covers) std::fill_n(dx.as<float>(), dx.elements(), 0.0f);
  for_each_window(shape, [&](std::size_t input, std::size_t output) {
    const float* relu = relu_output.empty() ? nullptr : relu_output.as<float>() + output;
    float* pixel = dx.as<float>() + input;
    for (std::size_t position = 0; position < shape.window * shape.window; ++position)
      route_gradient(channels, static_cast<std::uint8_t>(position), overlap,
                     argmax.as<std::uint8_t>() + output, relu, dy.as<float>() + output,
                     pixel + position / shape.window * row_stride + position % shape.window * channels);
  });
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
