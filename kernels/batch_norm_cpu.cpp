#include <algorithm>
#include <cmath>

#include "kernels/batch_norm.h"
#include "kernels/check.h"
#include "kernels/dispatch.h"
#include "kernels/multiversion_cpu.h"

namespace annulus::kernels {
namespace {

// x is [rows, channels]; the others of `op` are checked against its extents. Returns its dtype.
DType check_rows(const char* op, const Tensor& x, Device device) {
  check_rank(op, "x", x, 2);
  require<ShapeError>(x.shape()[1] > 0, "{}: there must be at least one channel", op);
  return check_activation(op, "x", x, device);
}

}  // namespace

std::size_t batch_norm_workspace_bytes(Device device, std::size_t rows, std::size_t channels) {
#if ANNULUS_HAS_CUDA
  if (device.is_cuda()) return cuda::batch_norm_workspace_bytes(rows, channels);
#endif
  static_cast<void>(device);
  static_cast<void>(rows);
  static_cast<void>(channels);
  return 0;
}

void batch_norm_forward(StreamView stream, const Tensor& x, const Tensor& scale, const Tensor& shift,
                        float epsilon, void* workspace, const Tensor& y, const Tensor& mean,
                        const Tensor& inverse_std, const Tensor& unbiased_variance) {
  constexpr const char* kOp = "batch_norm_forward";
  const Device device = stream.device();
  const DType dtype = check_rows(kOp, x, device);
  const Shape channels{x.shape()[1]};
  check_tensor(kOp, "scale", scale, channels, device);
  check_tensor(kOp, "shift", shift, channels, device);
  check_tensor(kOp, "y", y, x.shape(), device, dtype);
  check_tensor(kOp, "mean", mean, channels, device);
  check_tensor(kOp, "inverse_std", inverse_std, channels, device);
  check_tensor(kOp, "unbiased_variance", unbiased_variance, channels, device);
  ANNULUS_DISPATCH(stream, batch_norm_forward, x, scale, shift, epsilon, workspace, y, mean, inverse_std,
                   unbiased_variance);
}

void batch_norm_inference(StreamView stream, const Tensor& x, const Tensor& scale, const Tensor& shift,
                          const Tensor& mean, const Tensor& variance, float epsilon, const Tensor& y) {
  constexpr const char* kOp = "batch_norm_inference";
  const Device device = stream.device();
  const DType dtype = check_rows(kOp, x, device);
  const Shape channels{x.shape()[1]};
  check_tensor(kOp, "scale", scale, channels, device);
  check_tensor(kOp, "shift", shift, channels, device);
  check_tensor(kOp, "mean", mean, channels, device);
  check_tensor(kOp, "variance", variance, channels, device);
  check_tensor(kOp, "y", y, x.shape(), device, dtype);
  ANNULUS_DISPATCH(stream, batch_norm_inference, x, scale, shift, mean, variance, epsilon, y);
}

void batch_norm_backward(StreamView stream, const Tensor& dy, const Tensor& x, const Tensor& scale,
                         const Tensor& mean, const Tensor& inverse_std, void* workspace, const Tensor& dx,
                         const Tensor& dscale, const Tensor& dshift) {
  constexpr const char* kOp = "batch_norm_backward";
  const Device device = stream.device();
  const DType dtype = check_rows(kOp, x, device);
  const Shape channels{x.shape()[1]};
  check_tensor(kOp, "dy", dy, x.shape(), device, dtype);
  check_tensor(kOp, "scale", scale, channels, device);
  check_tensor(kOp, "mean", mean, channels, device);
  check_tensor(kOp, "inverse_std", inverse_std, channels, device);
  check_tensor(kOp, "dx", dx, x.shape(), device, dtype);
  check_tensor(kOp, "dscale", dscale, channels, device);
  check_tensor(kOp, "dshift", dshift, channels, device);
  ANNULUS_DISPATCH(stream, batch_norm_backward, dy, x, scale, mean, inverse_std, workspace, dx, dscale,
                   dshift);
}

namespace cpu {
namespace {

// Channels are taken in tiles of this many, whose sums fit in the first-level cache; all sums are in double
// and run over the rows in order.
constexpr std::size_t kTile = 64;

// totals[c] = sum over rows of x[row][c]; `width` channels of `channels`.
ANNULUS_MULTIVERSION void column_totals(std::size_t rows, std::size_t channels, std::size_t width,
                                        const float* x, double* totals) {
  std::fill_n(totals, width, 0.0);
  for (std::size_t row = 0; row < rows; ++row, x += channels)
    for (std::size_t c = 0; c < width; ++c) totals[c] += static_cast<double>(x[c]);
}

// squares[c] = sum over rows of (x[row][c] - centre[c])^2.
ANNULUS_MULTIVERSION void column_squares(std::size_t rows, std::size_t channels, std::size_t width,
                                         const float* x, const double* centre, double* squares) {
  std::fill_n(squares, width, 0.0);
  for (std::size_t row = 0; row < rows; ++row, x += channels)
    for (std::size_t c = 0; c < width; ++c) {
      const double deviation = static_cast<double>(x[c]) - centre[c];
      squares[c] += deviation * deviation;
    }
}

// products[c] = sum over rows of dy[row][c] * (x[row][c] - mean[c]).
ANNULUS_MULTIVERSION void column_products(std::size_t rows, std::size_t channels, std::size_t width,
                                          const float* dy, const float* x, const float* mean,
                                          double* products) {
  std::fill_n(products, width, 0.0);
  for (std::size_t row = 0; row < rows; ++row, x += channels, dy += channels)
    for (std::size_t c = 0; c < width; ++c)
      products[c] += static_cast<double>(dy[c]) * (static_cast<double>(x[c]) - static_cast<double>(mean[c]));
}

ANNULUS_MULTIVERSION void normalise(std::size_t rows, std::size_t channels, const float* x, const float* mean,
                                    const float* inverse_std, const float* scale, const float* shift,
                                    float* y) {
  for (std::size_t row = 0; row < rows; ++row, x += channels, y += channels)
#pragma GCC ivdep
    for (std::size_t c = 0; c < channels; ++c) y[c] = (x[c] - mean[c]) * inverse_std[c] * scale[c] + shift[c];
}

ANNULUS_MULTIVERSION void normalise_by_variance(std::size_t rows, std::size_t channels, const float* x,
                                                const float* mean, const float* variance, float epsilon,
                                                const float* scale, const float* shift, float* y) {
  for (std::size_t row = 0; row < rows; ++row, x += channels, y += channels)
#pragma GCC ivdep
    for (std::size_t c = 0; c < channels; ++c)
      y[c] = (x[c] - mean[c]) / std::sqrt(variance[c] + epsilon) * scale[c] + shift[c];
}

// dx = (dy - mean of dy - normalised x * mean of (dy * normalised x)) * inverse_std * scale, where the two
// means are dshift / rows and dscale / rows.
ANNULUS_MULTIVERSION void input_gradient(std::size_t rows, std::size_t channels, const float* dy,
                                         const float* x, const float* scale, const float* mean,
                                         const float* inverse_std, const float* dscale, const float* dshift,
                                         float* dx) {
  const float count = static_cast<float>(rows);
  for (std::size_t row = 0; row < rows; ++row, x += channels, dy += channels, dx += channels)
#pragma GCC ivdep
    for (std::size_t c = 0; c < channels; ++c) {
      const float normalised = (x[c] - mean[c]) * inverse_std[c];
      dx[c] = (dy[c] - dshift[c] / count - normalised * (dscale[c] / count)) * (inverse_std[c] * scale[c]);
    }
}

}  // namespace

void batch_norm_forward(StreamView, const Tensor& x, const Tensor& scale, const Tensor& shift, float epsilon,
                        void*, const Tensor& y, const Tensor& mean, const Tensor& inverse_std,
                        const Tensor& unbiased_variance) {
  const std::size_t rows = x.shape()[0], channels = x.shape()[1];
  // Without rows every sum is 0, and so are mean and variance.
  const double count = static_cast<double>(std::max<std::size_t>(rows, 1));
  const double degrees_of_freedom = static_cast<double>(rows > 1 ? rows - 1 : 1);
  for (std::size_t left = 0; left < channels; left += kTile) {
    const std::size_t width = std::min(kTile, channels - left);
    double centre[kTile], squares[kTile];
    column_totals(rows, channels, width, x.as<float>() + left, centre);
    for (std::size_t c = 0; c < width; ++c) centre[c] /= count;
    column_squares(rows, channels, width, x.as<float>() + left, centre, squares);
    for (std::size_t c = 0; c < width; ++c) {
      mean.as<float>()[left + c] = static_cast<float>(centre[c]);
      inverse_std.as<float>()[left + c] =
          static_cast<float>(1 / std::sqrt(squares[c] / count + static_cast<double>(epsilon)));
      unbiased_variance.as<float>()[left + c] = static_cast<float>(squares[c] / degrees_of_freedom);
    }
  }
  normalise(rows, channels, x.as<float>(), mean.as<float>(), inverse_std.as<float>(), scale.as<float>(),
            shift.as<float>(), y.as<float>());
}

void batch_norm_inference(StreamView, const Tensor& x, const Tensor& scale, const Tensor& shift,
                          const Tensor& mean, const Tensor& variance, float epsilon, const Tensor& y) {
  normalise_by_variance(x.shape()[0], x.shape()[1], x.as<float>(), mean.as<float>(), variance.as<float>(),
                        epsilon, scale.as<float>(), shift.as<float>(), y.as<float>());
}

void batch_norm_backward(StreamView, const Tensor& dy, const Tensor& x, const Tensor& scale,
                         const Tensor& mean, const Tensor& inverse_std, void*, const Tensor& dx,
                         const Tensor& dscale, const Tensor& dshift) {
  const std::size_t rows = x.shape()[0], channels = x.shape()[1];
  for (std::size_t left = 0; left < channels; left += kTile) {
    const std::size_t width = std::min(kTile, channels - left);
    double totals[kTile], products[kTile];
    column_totals(rows, channels, width, dy.as<float>() + left, totals);
    column_products(rows, channels, width, dy.as<float>() + left, x.as<float>() + left,
                    mean.as<float>() + left, products);
    for (std::size_t c = 0; c < width; ++c) {
      dshift.as<float>()[left + c] = static_cast<float>(totals[c]);
      dscale.as<float>()[left + c] =
          static_cast<float>(products[c] * static_cast<double>(inverse_std.as<float>()[left + c]));
    }
  }
  input_gradient(rows, channels, dy.as<float>(), x.as<float>(), scale.as<float>(), mean.as<float>(),
                 inverse_std.as<float>(), dscale.as<float>(), dshift.as<float>(), dx.as<float>());
}

}  // namespace cpu
}  // namespace annulus::kernels
