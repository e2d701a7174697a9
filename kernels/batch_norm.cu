#include "kernels/batch_norm.h"
#include "kernels/device/column_sums.h"

namespace annulus::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;

__global__ void moments_kernel(std::size_t rows, std::size_t channels, const float* x, float epsilon,
                               float* mean, float* inverse_std, float* unbiased_variance) {
  double* const shared = shared_memory<double>();
  const std::size_t channel = std::size_t{blockIdx.x} * kWarpSize + threadIdx.x;
  const std::size_t end = channel < channels ? rows : 0;
  const double row_count = static_cast<double>(rows > 0 ? rows : 1);
  const double average =
      sum_rows(0, end, shared, [=](std::size_t row) { return double{x[row * channels + channel]}; }) /
      row_count;
  // A second pass over x, not E[x^2] - E[x]^2, which cancels.
  const double squares = sum_rows(0, end, shared, [=](std::size_t row) {
    const double deviation = x[row * channels + channel] - average;
    return deviation * deviation;
  });
  if (channel >= channels || threadIdx.y != 0) return;
  mean[channel] = static_cast<float>(average);
  inverse_std[channel] = static_cast<float>(1 / sqrt(squares / row_count + epsilon));
  unbiased_variance[channel] = static_cast<float>(squares / static_cast<double>(rows > 1 ? rows - 1 : 1));
}

__global__ void normalise_kernel(std::size_t elements, std::size_t channels, const float* x,
                                 const float* mean, const float* inverse_std, const float* scale,
                                 const float* shift, float* y) {
  for (std::size_t i = global_thread(); i < elements; i += global_threads()) {
    const std::size_t channel = i % channels;
    y[i] = (x[i] - mean[channel]) * inverse_std[channel] * scale[channel] + shift[channel];
  }
}

__global__ void inference_kernel(std::size_t elements, std::size_t channels, const float* x,
                                 const float* mean, const float* variance, float epsilon, const float* scale,
                                 const float* shift, float* y) {
  for (std::size_t i = global_thread(); i < elements; i += global_threads()) {
    const std::size_t channel = i % channels;
    y[i] = (x[i] - mean[channel]) / sqrtf(variance[channel] + epsilon) * scale[channel] + shift[channel];
  }
}

__global__ void parameter_gradients_kernel(std::size_t rows, std::size_t channels, const float* dy,
                                           const float* x, const float* mean, const float* inverse_std,
                                           float* dscale, float* dshift) {
  double* const shared = shared_memory<double>();
  const std::size_t channel = std::size_t{blockIdx.x} * kWarpSize + threadIdx.x;
  const std::size_t end = channel < channels ? rows : 0;
  const double average = channel < channels ? mean[channel] : 0;
  const double total =
      sum_rows(0, end, shared, [=](std::size_t row) { return double{dy[row * channels + channel]}; });
  const double product = sum_rows(0, end, shared, [=](std::size_t row) {
    const std::size_t i = row * channels + channel;
    return dy[i] * (x[i] - average);
  });
  if (channel >= channels || threadIdx.y != 0) return;
  dshift[channel] = static_cast<float>(total);
  dscale[channel] = static_cast<float>(product * inverse_std[channel]);
}

// dx = scale * inverse_std * (dy - mean over rows of dy - normalised x * mean over rows of dy * normalised x)
__global__ void input_gradient_kernel(std::size_t rows, std::size_t channels, const float* dy, const float* x,
                                      const float* scale, const float* mean, const float* inverse_std,
                                      const float* dscale, const float* dshift, float* dx) {
  const float row_count = static_cast<float>(rows);
  for (std::size_t i = global_thread(); i < rows * channels; i += global_threads()) {
    const std::size_t channel = i % channels;
    const float normalised = (x[i] - mean[channel]) * inverse_std[channel];
    dx[i] = scale[channel] * inverse_std[channel] *
            (dy[i] - dshift[channel] / row_count - normalised * dscale[channel] / row_count);
  }
}

Grid elementwise_grid(const Tensor& x) { return {grid_stride_blocks(x.elements(), kThreads)}; }

}  // namespace

void batch_norm_forward(StreamView stream, const Tensor& x, const Tensor& scale, const Tensor& shift,
                        float epsilon, const Tensor& y, const Tensor& mean, const Tensor& inverse_std,
                        const Tensor& unbiased_variance) {
  const std::size_t channels = mean.elements();
  const std::size_t rows = x.elements() / channels;
  launch(stream, {blocks_for(channels, kWarpSize)}, dim3(kWarpSize, kRowLanes), kColumnSumsSharedBytes,
         moments_kernel, rows, channels, x.as<float>(), epsilon, mean.as<float>(), inverse_std.as<float>(),
         unbiased_variance.as<float>());
  launch(stream, elementwise_grid(x), kThreads, 0, normalise_kernel, x.elements(), channels, x.as<float>(),
         mean.as<float>(), inverse_std.as<float>(), scale.as<float>(), shift.as<float>(), y.as<float>());
}

void batch_norm_inference(StreamView stream, const Tensor& x, const Tensor& scale, const Tensor& shift,
                          const Tensor& mean, const Tensor& variance, float epsilon, const Tensor& y) {
  launch(stream, elementwise_grid(x), kThreads, 0, inference_kernel, x.elements(), mean.elements(),
         x.as<float>(), mean.as<float>(), variance.as<float>(), epsilon, scale.as<float>(), shift.as<float>(),
         y.as<float>());
}

void batch_norm_backward(StreamView stream, const Tensor& dy, const Tensor& x, const Tensor& scale,
                         const Tensor& mean, const Tensor& inverse_std, const Tensor& dx,
                         const Tensor& dscale, const Tensor& dshift) {
  const std::size_t channels = mean.elements();
  const std::size_t rows = x.elements() / channels;
  launch(stream, {blocks_for(channels, kWarpSize)}, dim3(kWarpSize, kRowLanes), kColumnSumsSharedBytes,
         parameter_gradients_kernel, rows, channels, dy.as<float>(), x.as<float>(), mean.as<float>(),
         inverse_std.as<float>(), dscale.as<float>(), dshift.as<float>());
  launch(stream, elementwise_grid(x), kThreads, 0, input_gradient_kernel, rows, channels, dy.as<float>(),
         x.as<float>(), scale.as<float>(), mean.as<float>(), inverse_std.as<float>(), dscale.as<float>(),
         dshift.as<float>(), dx.as<float>());
}

}  // namespace annulus::kernels::cuda
