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
  const DType dtype = check_activation("max_pool2d_forward", "x", x, device);
  check_tensor("max_pool2d_forward", "x", x, shape.input(), device, dtype);
  check_tensor("max_pool2d_forward", "y", y, shape.output(), device, dtype);
  check_tensor("max_pool2d_forward", "argmax", argmax, shape.output(), device, DType::u8);
  ANNULUS_DISPATCH(stream, max_pool2d_forward, shape, x, y, argmax);
}

void max_pool2d_backward(StreamView stream, const Pool2dShape& shape, const Tensor& dy, const Tensor& argmax,
                         const Tensor& relu_output, const Tensor& dx) {
  shape.check();
  const Device device = stream.device();
  const DType dtype = check_activation("max_pool2d_backward", "dy", dy, device);
  check_tensor("max_pool2d_backward", "dy", dy, shape.output(), device, dtype);
  check_tensor("max_pool2d_backward", "argmax", argmax, shape.output(), device, DType::u8);
  if (!relu_output.empty())
    check_tensor("max_pool2d_backward", "relu_output", relu_output, shape.output(), device, dtype);
  check_tensor("max_pool2d_backward", "dx", dx, shape.input(), device, dtype);
  ANNULUS_DISPATCH(stream, max_pool2d_backward, shape, dy, argmax, relu_output, dx);
}

void global_average_pool_forward(StreamView stream, const Tensor& x, const Tensor& y) {
  check_rank("global_average_pool_forward", "x", x, 4);
  const DType dtype = check_activation("global_average_pool_forward", "x", x, stream.device());
  check_tensor("global_average_pool_forward", "y", y, {x.shape()[0], x.shape()[3]}, stream.device(), dtype);
  ANNULUS_DISPATCH(stream, global_average_pool_forward, x, y);
}

void global_average_pool_backward(StreamView stream, const Tensor& dy, const Tensor& dx) {
  check_rank("global_average_pool_backward", "dx", dx, 4);
  const DType dtype = check_activation("global_average_pool_backward", "dx", dx, stream.device());
  check_tensor("global_average_pool_backward", "dy", dy, {dx.shape()[0], dx.shape()[3]}, stream.device(),
               dtype);
  ANNULUS_DISPATCH(stream, global_average_pool_backward, dy, dx);
}

namespace cpu {
namespace {

// Calls visit(input offset of the first window's first pixel, output offset) for every row of outputs.
template <class Visit>
void for_each_row(const Pool2dShape& s, const Visit& visit) {
  const std::size_t out_height = s.out_height(), out_elements = s.out_width() * s.channels;
  for (std::size_t image = 0; image < s.batch; ++image)
    for (std::size_t row = 0; row < out_height; ++row)
      visit((image * s.in_height + row * s.stride) * s.in_width * s.channels,
            (image * out_height + row) * out_elements);
}

// The same for every window, in order.
template <class Visit>
void for_each_window(const Pool2dShape& s, const Visit& visit) {
  for_each_row(s, [&](std::size_t input, std::size_t output) {
    for (std::size_t column = 0; column < s.out_width(); ++column)
      visit(input + column * s.stride * s.channels, output + column * s.channels);
  });
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

// Windows of two by two in one row of outputs: windows lie `step` elements apart, their rows `row_stride`.
ANNULUS_MULTIVERSION void maximum_of_four(std::size_t windows, std::size_t channels, std::size_t step,
                                          std::size_t row_stride, const float* x, float* y,
                                          std::uint8_t* argmax) {
  for (std::size_t window = 0; window < windows; ++window, x += step, y += channels, argmax += channels) {
    const float *x1 = x + channels, *x2 = x + row_stride, *x3 = x2 + channels;
#pragma GCC ivdep
    for (std::size_t i = 0; i < channels; ++i) {
      const float others[3] = {x1[i], x2[i], x3[i]};
      float best = x[i];
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

// The reverse for windows that do not overlap: writes all four pixels of each window.
ANNULUS_MULTIVERSION void route_to_four(std::size_t windows, std::size_t channels, std::size_t step,
                                        std::size_t row_stride, const std::uint8_t* argmax,
                                        const float* relu_output, const float* dy, float* dx) {
  for (std::size_t window = 0; window < windows; ++window, dx += step, dy += channels, argmax += channels) {
    float *dx1 = dx + channels, *dx2 = dx + row_stride, *dx3 = dx2 + channels;
#pragma GCC ivdep
    for (std::size_t i = 0; i < channels; ++i) {
      const std::int32_t position = argmax[i];
      const float gradient = relu_output == nullptr || relu_output[i] > 0 ? dy[i] : 0;
      dx[i] = position == 0 ? gradient : 0;
      dx1[i] = position == 1 ? gradient : 0;
      dx2[i] = position == 2 ? gradient : 0;
      dx3[i] = position == 3 ? gradient : 0;
    }
    if (relu_output != nullptr) relu_output += channels;
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
  const float* source = x.as<float>();
  float* maximum = y.as<float>();
  std::uint8_t* position = argmax.as<std::uint8_t>();
  if (shape.window == 2) {
    for_each_row(shape, [&](std::size_t input, std::size_t output) {
      maximum_of_four(shape.out_width(), channels, shape.stride * channels, row_stride, source + input,
                      maximum + output, position + output);
    });
    return;
  }
  for_each_window(shape, [&](std::size_t input, std::size_t output) {
    std::copy_n(source + input, channels, maximum + output);
    std::fill_n(position + output, channels, std::uint8_t{0});
    for (std::size_t other = 1; other < shape.window * shape.window; ++other)
      maximum_with(channels,
                   source + input + other / shape.window * row_stride + other % shape.window * channels,
                   static_cast<std::int32_t>(other), maximum + output, position + output);
  });
}

void max_pool2d_backward(StreamView, const Pool2dShape& shape, const Tensor& dy, const Tensor& argmax,
                         const Tensor& relu_output, const Tensor& dx) {
  const std::size_t channels = shape.channels, row_stride = shape.in_width * channels;
  const bool overlap = shape.stride < shape.window;
  const bool covers = shape.stride == shape.window && shape.in_height % shape.window == 0 &&
                      shape.in_width % shape.window == 0;
  const std::uint8_t* position = argmax.as<std::uint8_t>();
  const float* relu = relu_output.empty() ? nullptr : relu_output.as<float>();
  const auto relu_at = [relu](std::size_t output) { return relu == nullptr ? nullptr : relu + output; };
  if (!covers) std::fill_n(dx.as<float>(), dx.elements(), 0.0f);
  if (shape.window == 2 && !overlap) {
    for_each_row(shape, [&](std::size_t input, std::size_t output) {
      route_to_four(shape.out_width(), channels, shape.stride * channels, row_stride, position + output,
                    relu_at(output), dy.as<float>() + output, dx.as<float>() + input);
    });
    return;
  }
  for_each_window(shape, [&](std::size_t input, std::size_t output) {
    float* pixel = dx.as<float>() + input;
    for (std::size_t other = 0; other < shape.window * shape.window; ++other)
      route_gradient(channels, static_cast<std::uint8_t>(other), overlap, position + output, relu_at(output),
                     dy.as<float>() + output,
                     pixel + other / shape.window * row_stride + other % shape.window * channels);
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
