// Sums over rows are made in two launches, so that many rows keep many blocks busy: blocks add up chunks of
// rows, and a second kernel adds the chunks in order. Both run in f64. Values are taken relative to the first
// row, so that the sum of squares does not cancel where the mean is large beside the deviation.
#include <algorithm>

#include "kernels/batch_norm.h"
#include "kernels/device/column_sums.h"
#include "kernels/device/pack.h"

namespace annulus::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;

// Two sums over rows of one channel.
struct Sums {
  double first, second;
};

// partials[chunk][channel] = sums over a chunk of rows of the two numbers that terms(channel) gives for a
// row. Blocks [channel group, chunk].
template <class Terms>
__global__ void chunk_sums_kernel(std::size_t rows, std::size_t rows_per_chunk, std::size_t channels,
                                  Terms terms, Sums* partials) {
  double* const shared = shared_memory<double>();
  const std::size_t channel = std::size_t{blockIdx.x} * kWarpSize + threadIdx.x;
  const bool inside = channel < channels;
  const std::size_t begin = blockIdx.y * rows_per_chunk;
  const std::size_t end = !inside ? begin : begin + rows_per_chunk < rows ? begin + rows_per_chunk : rows;
  const auto term = terms.of(inside && rows > 0 ? channel : 0, inside && rows > 0);
  Sums mine{0, 0};
  for (std::size_t row = begin + threadIdx.y; row < end; row += kRowLanes) {
    const Sums one = term(row * channels + channel);
    mine.first += one.first;
    mine.second += one.second;
  }
  mine.first = add_row_lanes(mine.first, shared);
  mine.second = add_row_lanes(mine.second, shared);
  if (inside && threadIdx.y == 0) partials[blockIdx.y * channels + channel] = mine;
}

__device__ Sums add_chunks(std::size_t chunks, std::size_t channels, std::size_t channel,
                           const Sums* partials) {
  Sums total{0, 0};
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    total.first += partials[chunk * channels + channel].first;
    total.second += partials[chunk * channels + channel].second;
  }
  return total;
}

// Deviations from the first row, and their squares.
template <class T>
struct Deviations {
  const T* x;

  struct Term {
    const T* x;
    double origin;
    __device__ Sums operator()(std::size_t element) const {
      const double deviation = to_float(x[element]) - origin;
      return {deviation, deviation * deviation};
    }
  };
  __device__ Term of(std::size_t channel, bool inside) const {
    return {x, inside ? to_float(x[channel]) : 0.0};
  }
};

template <class T>
__global__ void moments_kernel(std::size_t rows, std::size_t channels, std::size_t chunks,
                               const Sums* partials, const T* x, float epsilon, float* mean,
                               float* inverse_std, float* unbiased_variance) {
  const std::size_t channel = global_thread();
  if (channel >= channels) return;
  const Sums total = add_chunks(chunks, channels, channel, partials);
  const double count = static_cast<double>(rows > 0 ? rows : 1);
  const double origin = rows > 0 ? to_float(x[channel]) : 0;
  const double deviation = total.first / count;
  double squares = total.second - total.first * deviation;
  if (squares < 0) squares = 0;  // false for NaN, which stays
  mean[channel] = static_cast<float>(origin + deviation);
  inverse_std[channel] = static_cast<float>(1 / sqrt(squares / count + epsilon));
  unbiased_variance[channel] = static_cast<float>(squares / static_cast<double>(rows > 1 ? rows - 1 : 1));
}

// y = (x - mean) * inverse_std * scale + shift
template <int Width, class T>
__global__ void normalise_kernel(std::size_t elements, std::size_t channels, const T* x, const float* mean,
                                 const float* inverse_std, const float* scale, const float* shift, T* y) {
  for (std::size_t i = global_thread(); i < elements / Width; i += global_threads()) {
    const std::size_t channel = i * Width % channels;
    Pack<Width> pack = load_float<Width>(x + i * Width);
#pragma unroll
    for (int e = 0; e < Width; ++e)
      pack.value[e] = (pack.value[e] - mean[channel + e]) * inverse_std[channel + e] * scale[channel + e] +
                      shift[channel + e];
    store_float(y + i * Width, pack);
  }
}

template <int Width, class T>
__global__ void inference_kernel(std::size_t elements, std::size_t channels, const T* x, const float* mean,
                                 const float* variance, float epsilon, const float* scale, const float* shift,
                                 T* y) {
  for (std::size_t i = global_thread(); i < elements / Width; i += global_threads()) {
    const std::size_t channel = i * Width % channels;
    Pack<Width> pack = load_float<Width>(x + i * Width);
#pragma unroll
    for (int e = 0; e < Width; ++e)
      pack.value[e] =
          (pack.value[e] - mean[channel + e]) / sqrtf(variance[channel + e] + epsilon) * scale[channel + e] +
          shift[channel + e];
    store_float(y + i * Width, pack);
  }
}

// dy, and dy times the deviation of x from the mean.
template <class T>
struct ParameterGradients {
  const T* dy;
  const T* x;
  const float* mean;

  struct Term {
    const T* dy;
    const T* x;
    double mean;
    __device__ Sums operator()(std::size_t element) const {
      const double gradient = to_float(dy[element]);
      return {gradient, gradient * (to_float(x[element]) - mean)};
    }
  };
  __device__ Term of(std::size_t channel, bool inside) const { return {dy, x, inside ? mean[channel] : 0.0}; }
};

__global__ void parameter_gradients_kernel(std::size_t channels, std::size_t chunks, const Sums* partials,
                                           const float* inverse_std, float* dscale, float* dshift) {
  const std::size_t channel = global_thread();
  if (channel >= channels) return;
  const Sums total = add_chunks(chunks, channels, channel, partials);
  dshift[channel] = static_cast<float>(total.first);
  dscale[channel] = static_cast<float>(total.second * inverse_std[channel]);
}

// dx = scale * inverse_std * (dy - mean over rows of dy - normalised x * mean over rows of dy * normalised x)
template <int Width, class T>
__global__ void input_gradient_kernel(std::size_t rows, std::size_t channels, const T* dy, const T* x,
                                      const float* scale, const float* mean, const float* inverse_std,
                                      const float* dscale, const float* dshift, T* dx) {
  const float row_count = static_cast<float>(rows);
  for (std::size_t i = global_thread(); i < rows * channels / Width; i += global_threads()) {
    const std::size_t channel = i * Width % channels;
    Pack<Width> gradient = load_float<Width>(dy + i * Width);
    const Pack<Width> value = load_float<Width>(x + i * Width);
#pragma unroll
    for (int e = 0; e < Width; ++e) {
      const std::size_t c = channel + e;
      const float normalised = (value.value[e] - mean[c]) * inverse_std[c];
      gradient.value[e] = scale[c] * inverse_std[c] *
                          (gradient.value[e] - dshift[c] / row_count - normalised * dscale[c] / row_count);
    }
    store_float(dx + i * Width, gradient);
  }
}

template <class Terms>
void chunk_sums(StreamView stream, std::size_t rows, std::size_t channels, std::size_t chunks, Terms terms,
                void* workspace) {
  launch(stream, {blocks_for(channels, kWarpSize), chunks}, dim3(kWarpSize, kRowLanes),
         kColumnSumsSharedBytes, chunk_sums_kernel<Terms>, rows, blocks_for(rows, chunks), channels, terms,
         static_cast<Sums*>(workspace));
}

// Calls run() with the width of packs of channels, for arrays [rows, channels] of T.
template <class T, class Run>
void for_rows(std::size_t channels, std::initializer_list<const Tensor> arrays, const Run& run) {
  const bool aligned = std::all_of(arrays.begin(), arrays.end(),
                                   [](const Tensor& array) { return is_pack_aligned(array.data()); });
  with_pack_width<T>(aligned && channels % kPackWidth<T> == 0, run);
}

}  // namespace

std::size_t batch_norm_workspace_bytes(std::size_t rows, std::size_t channels) {
  return column_sums_chunks(rows) * channels * sizeof(Sums);
}

void batch_norm_forward(StreamView stream, const Tensor& x, const Tensor& scale, const Tensor& shift,
                        float epsilon, void* workspace, const Tensor& y, const Tensor& mean,
                        const Tensor& inverse_std, const Tensor& unbiased_variance) {
  const std::size_t channels = mean.elements();
  const std::size_t rows = x.elements() / channels;
  const std::size_t chunks = column_sums_chunks(rows);
  visit_activation(x.dtype(), [&]<class T>(T) {
    chunk_sums(stream, rows, channels, chunks, Deviations<T>{x.as<T>()}, workspace);
    launch(stream, {blocks_for(channels, kThreads)}, kThreads, 0, moments_kernel<T>, rows, channels, chunks,
           static_cast<const Sums*>(workspace), x.as<T>(), epsilon, mean.as<float>(), inverse_std.as<float>(),
           unbiased_variance.as<float>());
    for_rows<T>(channels, {x, y}, [&]<int Width>(std::integral_constant<int, Width>) {
      launch(stream, {grid_stride_blocks(x.elements() / Width, kThreads)}, kThreads, 0,
             normalise_kernel<Width, T>, x.elements(), channels, x.as<T>(), mean.as<float>(),
             inverse_std.as<float>(), scale.as<float>(), shift.as<float>(), y.as<T>());
    });
  });
}

void batch_norm_inference(StreamView stream, const Tensor& x, const Tensor& scale, const Tensor& shift,
                          const Tensor& mean, const Tensor& variance, float epsilon, const Tensor& y) {
  visit_activation(x.dtype(), [&]<class T>(T) {
    for_rows<T>(mean.elements(), {x, y}, [&]<int Width>(std::integral_constant<int, Width>) {
      launch(stream, {grid_stride_blocks(x.elements() / Width, kThreads)}, kThreads, 0,
             inference_kernel<Width, T>, x.elements(), mean.elements(), x.as<T>(), mean.as<float>(),
             variance.as<float>(), epsilon, scale.as<float>(), shift.as<float>(), y.as<T>());
    });
  });
}

void batch_norm_backward(StreamView stream, const Tensor& dy, const Tensor& x, const Tensor& scale,
                         const Tensor& mean, const Tensor& inverse_std, void* workspace, const Tensor& dx,
                         const Tensor& dscale, const Tensor& dshift) {
  const std::size_t channels = mean.elements();
  const std::size_t rows = x.elements() / channels;
  const std::size_t chunks = column_sums_chunks(rows);
  visit_activation(x.dtype(), [&]<class T>(T) {
    chunk_sums(stream, rows, channels, chunks, ParameterGradients<T>{dy.as<T>(), x.as<T>(), mean.as<float>()},
               workspace);
    launch(stream, {blocks_for(channels, kThreads)}, kThreads, 0, parameter_gradients_kernel, channels,
           chunks, static_cast<const Sums*>(workspace), inverse_std.as<float>(), dscale.as<float>(),
           dshift.as<float>());
    for_rows<T>(channels, {dy, x, dx}, [&]<int Width>(std::integral_constant<int, Width>) {
      launch(stream, {grid_stride_blocks(x.elements() / Width, kThreads)}, kThreads, 0,
             input_gradient_kernel<Width, T>, rows, channels, dy.as<T>(), x.as<T>(), scale.as<float>(),
             mean.as<float>(), inverse_std.as<float>(), dscale.as<float>(), dshift.as<float>(), dx.as<T>());
    });
  });
}

}  // namespace annulus::kernels::cuda
