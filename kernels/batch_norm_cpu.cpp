#include <cmath>

#include "kernels/batch_norm.h"
#include "kernels/check.h"
#include "kernels/dispatch.h"

namespace annulus::kernels {
namespace {

// x is [rows, channels]; the others of `op` are checked against its extents.
void check_rows(const char* op, const Tensor& x, Device device) {
  check_rank(op, "x", x, 2);
  check_tensor(op, "x", x, x.shape(), device);
  require<ShapeError>(x.shape()[1] > 0, "{}: there must be at least one channel", op);
}

}  // namespace

void batch_norm_forward(StreamView stream, const Tensor& x, const Tensor& scale, const Tensor& shift,
                        float epsilon, const Tensor& y, const Tensor& mean, const Tensor& inverse_std,
                        const Tensor& unbiased_variance) {
  constexpr const char* kOp = "batch_norm_forward";
  const Device device = stream.device();
  check_rows(kOp, x, device);
  const Shape channels{x.shape()[1]};
  check_tensor(kOp, "scale", scale, channels, device);
  check_tensor(kOp, "shift", shift, channels, device);
  check_tensor(kOp, "y", y, x.shape(), device);
  check_tensor(kOp, "mean", mean, channels, device);
  check_tensor(kOp, "inverse_std", inverse_std, channels, device);
  check_tensor(kOp, "unbiased_variance", unbiased_variance, channels, device);
  ANNULUS_DISPATCH(stream, batch_norm_forward, x, scale, shift, epsilon, y, mean, inverse_std,
                   unbiased_variance);
}

void batch_norm_inference(StreamView stream, const Tensor& x, const Tensor& scale, const Tensor& shift,
                          const Tensor& mean, const Tensor& variance, float epsilon, const Tensor& y) {
  constexpr const char* kOp = "batch_norm_inference";
  const Device device = stream.device();
  check_rows(kOp, x, device);
  const Shape channels{x.shape()[1]};
  check_tensor(kOp, "scale", scale, channels, device);
  check_tensor(kOp, "shift", shift, channels, device);
  check_tensor(kOp, "mean", mean, channels, device);
  check_tensor(kOp, "variance", variance, channels, device);
  check_tensor(kOp, "y", y, x.shape(), device);
  ANNULUS_DISPATCH(stream, batch_norm_inference, x, scale, shift, mean, variance, epsilon, y);
}

void batch_norm_backward(StreamView stream, const Tensor& dy, const Tensor& x, const Tensor& scale,
                         const Tensor& mean, const Tensor& inverse_std, const Tensor& dx,
                         const Tensor& dscale, const Tensor& dshift) {
  constexpr const char* kOp = "batch_norm_backward";
  const Device device = stream.device();
  check_rows(kOp, x, device);
  const Shape channels{x.shape()[1]};
  check_tensor(kOp, "dy", dy, x.shape(), device);
  check_tensor(kOp, "scale", scale, channels, device);
  check_tensor(kOp, "mean", mean, channels, device);
  check_tensor(kOp, "inverse_std", inverse_std, channels, device);
  check_tensor(kOp, "dx", dx, x.shape(), device);
  check_tensor(kOp, "dscale", dscale, channels, device);
  check_tensor(kOp, "dshift", dshift, channels, device);
  ANNULUS_DISPATCH(stream, batch_norm_backward, dy, x, scale, mean, inverse_std, dx, dscale, dshift);
}

namespace cpu {

void batch_norm_forward(StreamView, const Tensor& x, const Tensor& scale, const Tensor& shift, float epsilon,
                        const Tensor& y, const Tensor& mean, const Tensor& inverse_std,
                        const Tensor& unbiased_variance) {
  const std::size_t rows = x.shape()[0], channels = x.shape()[1];
  const float *source = x.as<float>(), *gamma = scale.as<float>(), *beta = shift.as<float>();
  float* target = y.as<float>();
  const double count = static_cast<double>(rows);
  for (std::size_t channel = 0; channel < channels; ++channel) {
    double total = 0, squares = 0;
    for (std::size_t row = 0; row < rows; ++row)
      total += static_cast<double>(source[row * channels + channel]);
    const double average = rows > 0 ? total / count : 0;
    for (std::size_t row = 0; row < rows; ++row) {
      const double centred = static_cast<double>(source[row * channels + channel]) - average;
      squares += centred * centred;
    }
    const double variance = rows > 0 ? squares / count : 0;
    const double inverse = 1 / std::sqrt(variance + static_cast<double>(epsilon));
    mean.as<float>()[channel] = static_cast<float>(average);
    inverse_std.as<float>()[channel] = static_cast<float>(inverse);
    unbiased_variance.as<float>()[channel] = static_cast<float>(rows > 1 ? squares / (count - 1) : variance);
    const float m = static_cast<float>(average), i = static_cast<float>(inverse);
    for (std::size_t row = 0; row < rows; ++row)
      target[row * channels + channel] =
          (source[row * channels + channel] - m) * i * gamma[channel] + beta[channel];
  }
}

void batch_norm_inference(StreamView, const Tensor& x, const Tensor& scale, const Tensor& shift,
                          const Tensor& mean, const Tensor& variance, float epsilon, const Tensor& y) {
  const std::size_t rows = x.shape()[0], channels = x.shape()[1];
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t channel = 0; channel < channels; ++channel)
      y.as<float>()[row * channels + channel] =
          (x.as<float>()[row * channels + channel] - mean.as<float>()[channel]) /
              std::sqrt(variance.as<float>()[channel] + epsilon) * scale.as<float>()[channel] +
          shift.as<float>()[channel];
}

void batch_norm_backward(StreamView, const Tensor& dy, const Tensor& x, const Tensor& scale,
                         const Tensor& mean, const Tensor& inverse_std, const Tensor& dx,
                         const Tensor& dscale, const Tensor& dshift) {
  const std::size_t rows = x.shape()[0], channels = x.shape()[1];
  const float *source = x.as<float>(), *gradient = dy.as<float>();
  for (std::size_t channel = 0; channel < channels; ++channel) {
    const float m = mean.as<float>()[channel], i = inverse_std.as<float>()[channel];
    double total = 0, product = 0;
    for (std::size_t row = 0; row < rows; ++row) {
      const double g = static_cast<double>(gradient[row * channels + channel]);
      total += g;
      product += g * static_cast<double>((source[row * channels + channel] - m) * i);
    }
    const double count = static_cast<double>(rows);
    for (std::size_t row = 0; row < rows; ++row) {
      const double normalised = static_cast<double>((source[row * channels + channel] - m) * i);
      const double g = static_cast<double>(gradient[row * channels + channel]);
      dx.as<float>()[row * channels + channel] =
          static_cast<float>((g - total / count - normalised * product / count) *
                             static_cast<double>(i * scale.as<float>()[channel]));
    }
    dscale.as<float>()[channel] = static_cast<float>(product);
    dshift.as<float>()[channel] = static_cast<float>(total);
  }
}

}  // namespace cpu
}  // namespace annulus::kernels
