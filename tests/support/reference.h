// Plain references in double, written as the textbook has them: nothing here is fast. Images are
// channels-last, convolution weights [out_channels, in_channels, height, width].
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/conv2d.h"
#include "kernels/linear.h"
#include "kernels/pool2d.h"

namespace annulus::test::reference {

using Doubles = std::vector<double>;

/// Sum of a[i] * b[i]: a scalar loss whose gradient by `a` is `b`.
inline double dot(const Doubles& a, const Doubles& b) {
  double total = 0;
  for (std::size_t i = 0; i < a.size(); ++i) total += a[i] * b[i];
  return total;
}

/// max(x, 0), NaN kept.
inline double relu(double x) { return x < 0 ? 0 : x; }

/// Calls visit(output index, input index, weight index) for every product in a convolution.
template <class Visit>
void for_each_product(const kernels::Conv2dShape& s, const Visit& visit) {
  std::size_t output = 0;
  for (std::size_t b = 0; b < s.batch; ++b)
    for (std::size_t row = 0; row < s.out_height(); ++row)
      for (std::size_t column = 0; column < s.out_width(); ++column)
        for (std::size_t out = 0; out < s.out_channels; ++out, ++output)
          for (std::size_t in = 0; in < s.in_channels; ++in)
            for (std::size_t i = 0; i < s.kernel_height; ++i)
              for (std::size_t j = 0; j < s.kernel_width; ++j) {
                const std::size_t y = row * s.stride + i, x = column * s.stride + j;  // in the padded image
                if (y < s.padding || y - s.padding >= s.in_height || x < s.padding ||
                    x - s.padding >= s.in_width)
                  continue;
                const std::size_t pixel = (b * s.in_height + y - s.padding) * s.in_width + x - s.padding;
                visit(output, pixel * s.in_channels + in,
                      ((out * s.in_channels + in) * s.kernel_height + i) * s.kernel_width + j);
              }
}

inline Doubles conv2d_forward(const kernels::Conv2dShape& s, const Doubles& x, const Doubles& weights,
                              const Doubles& bias) {
  Doubles y(s.output().elements());
  for_each_product(s, [&](std::size_t o, std::size_t i, std::size_t w) { y[o] += x[i] * weights[w]; });
  for (std::size_t o = 0; o < y.size(); ++o) {
    if (s.bias) y[o] += bias[o % s.out_channels];
    if (s.relu) y[o] = relu(y[o]);
  }
  return y;
}

inline Doubles conv2d_backward_data(const kernels::Conv2dShape& s, const Doubles& dy,
                                    const Doubles& weights) {
  Doubles dx(s.input().elements());
  for_each_product(s, [&](std::size_t o, std::size_t i, std::size_t w) { dx[i] += dy[o] * weights[w]; });
  return dx;
}

/// {dweights, dbias}
inline std::pair<Doubles, Doubles> conv2d_backward_weights(const kernels::Conv2dShape& s, const Doubles& x,
                                                           const Doubles& dy) {
  Doubles dweights(s.weights().elements()), dbias(s.out_channels);
  for_each_product(s, [&](std::size_t o, std::size_t i, std::size_t w) { dweights[w] += x[i] * dy[o]; });
  for (std::size_t o = 0; o < dy.size(); ++o) dbias[o % s.out_channels] += dy[o];
  return {dweights, dbias};
}

/// A linear layer is a convolution over images of one pixel.
inline kernels::Conv2dShape as_conv2d(const kernels::LinearShape& s) {
  return {.batch = s.batch,
          .in_height = 1,
          .in_width = 1,
          .in_channels = s.in_features,
          .out_channels = s.out_features,
          .bias = s.bias,
          .relu = s.relu};
}

/// {y, argmax}
inline std::pair<Doubles, std::vector<std::uint8_t>> max_pool2d_forward(const kernels::Pool2dShape& s,
                                                                        const Doubles& x) {
  Doubles y;
  std::vector<std::uint8_t> argmax;
  for (std::size_t b = 0; b < s.batch; ++b)
    for (std::size_t row = 0; row < s.out_height(); ++row)
      for (std::size_t column = 0; column < s.out_width(); ++column)
        for (std::size_t c = 0; c < s.channels; ++c) {
          double best = 0;
          std::size_t position = 0;
          for (std::size_t k = 0; k < s.window * s.window; ++k) {
            const std::size_t v = row * s.stride + k / s.window, h = column * s.stride + k % s.window;
            const double value = x[((b * s.in_height + v) * s.in_width + h) * s.channels + c];
            if (k == 0 || value > best || (std::isnan(value) && !std::isnan(best))) {
              best = value;
              position = k;
            }
          }
          y.push_back(best);
          argmax.push_back(static_cast<std::uint8_t>(position));
        }
  return {y, argmax};
}

inline Doubles max_pool2d_backward(const kernels::Pool2dShape& s, const Doubles& dy,
                                   const std::vector<std::uint8_t>& argmax) {
  Doubles dx(s.input().elements());
  std::size_t output = 0;
  for (std::size_t b = 0; b < s.batch; ++b)
    for (std::size_t row = 0; row < s.out_height(); ++row)
      for (std::size_t column = 0; column < s.out_width(); ++column)
        for (std::size_t c = 0; c < s.channels; ++c, ++output) {
          const std::size_t v = row * s.stride + argmax[output] / s.window;
          const std::size_t h = column * s.stride + argmax[output] % s.window;
          dx[((b * s.in_height + v) * s.in_width + h) * s.channels + c] += dy[output];
        }
  return dx;
}

struct Moments {
  Doubles mean, variance, unbiased_variance;
};

/// Of each column of x [rows, channels]; zeros without rows.
inline Moments moments(std::size_t rows, std::size_t channels, const Doubles& x) {
  Moments m{Doubles(channels), Doubles(channels), Doubles(channels)};
  if (rows == 0) return m;
  for (std::size_t i = 0; i < x.size(); ++i) m.mean[i % channels] += x[i] / static_cast<double>(rows);
  for (std::size_t i = 0; i < x.size(); ++i)
    m.variance[i % channels] += std::pow(x[i] - m.mean[i % channels], 2) / static_cast<double>(rows);
  for (std::size_t c = 0; c < channels; ++c)
    m.unbiased_variance[c] =
        rows > 1 ? m.variance[c] * static_cast<double>(rows) / static_cast<double>(rows - 1) : m.variance[c];
  return m;
}

inline Doubles batch_norm(std::size_t channels, const Doubles& x, const Doubles& mean,
                          const Doubles& variance, double epsilon, const Doubles& scale,
                          const Doubles& shift) {
  Doubles y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t c = i % channels;
    y[i] = (x[i] - mean[c]) / std::sqrt(variance[c] + epsilon) * scale[c] + shift[c];
  }
  return y;
}

/// Sum of the losses of all rows whose label is not negative.
inline double cross_entropy(std::size_t classes, const Doubles& logits,
                            const std::vector<std::int32_t>& labels, double smoothing) {
  double total = 0;
  for (std::size_t row = 0; row < labels.size(); ++row) {
    if (labels[row] < 0) continue;
    const double* z = logits.data() + row * classes;
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::size_t c = 0; c < classes; ++c) largest = std::fmax(largest, z[c]);
    for (std::size_t c = 0; c < classes; ++c) sum += std::exp(z[c] - largest);
    for (std::size_t c = 0; c < classes; ++c) {
      const double one_hot = c == static_cast<std::size_t>(labels[row]) ? 1 : 0;
      const double target = (1 - smoothing) * one_hot + smoothing / static_cast<double>(classes);
      if (target > 0) total -= target * (z[c] - largest - std::log(sum));
    }
  }
  return total;
}

}  // namespace annulus::test::reference
