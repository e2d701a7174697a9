#include "kernels/one_channel_cpu.h"

#include <algorithm>

namespace annulus::kernels::cpu {
namespace {

std::size_t taps(const Conv2dShape& s) { return s.kernel_height * s.kernel_width; }
std::size_t rows(const Conv2dShape& s) { return taps(s) + (s.bias ? 1 : 0); }
std::size_t pixels(const Conv2dShape& s) { return s.out_height() * s.out_width(); }
std::size_t windows_bytes(const Conv2dShape& s) { return rows(s) * pixels(s) * sizeof(float); }

// Output positions [begin, end) along one axis whose tap lies inside the image.
struct Inside {
  std::size_t begin, end;
  Inside(std::size_t outputs, std::size_t inputs, std::size_t stride, std::size_t padding, std::size_t tap) {
    begin = tap >= padding ? 0 : (padding - tap + stride - 1) / stride;
    const std::size_t reach = inputs + padding;  // position * stride + tap must stay below
    end = reach > tap ? std::min(outputs, (reach - tap + stride - 1) / stride) : 0;
    begin = std::min(begin, end);
  }
};

}  // namespace

bool OneChannelWeightGradient::suits(const Conv2dShape& shape) {
  constexpr std::size_t kCacheBytes = 1 << 20;  // half of a core's second-level cache
  return shape.in_channels == 1 && windows_bytes(shape) <= kCacheBytes;
}

OneChannelWeightGradient::OneChannelWeightGradient(const Conv2dShape& shape)
    : shape_(shape),
      windows_(Device::cpu(), windows_bytes(shape)),
      sums_(Device::cpu(), rows(shape) * shape.out_channels * sizeof(float)) {
  // What lies in the padding is zero for every image, and written only here; the row of ones likewise.
  float* windows = static_cast<float*>(windows_.data());
  std::fill_n(windows, taps(shape) * pixels(shape), 0.0f);
  std::fill(windows + taps(shape) * pixels(shape), windows + rows(shape) * pixels(shape), 1.0f);

  const auto a = f32_desc({dim(rows(shape)), dim(pixels(shape))}, FormatTag::ab);
  const auto b = f32_desc({dim(pixels(shape)), dim(shape.out_channels)}, FormatTag::ab);
  const auto c = f32_desc({dim(rows(shape)), dim(shape.out_channels)}, FormatTag::ab);
  dnnl::post_ops accumulate;
  accumulate.append_sum(1.0f);
  dnnl::primitive_attr attributes = user_scratchpad();
  attributes.set_post_ops(accumulate);
  const dnnl::matmul::primitive_desc description({a, b, c}, attributes, context_.engine);
  product_ = OnednnPrimitive::plan<dnnl::matmul>(
      context_, description, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}});
  product_.set(DNNL_ARG_SRC, windows_.data());
  product_.set(DNNL_ARG_DST, sums_.data());
}

void OneChannelWeightGradient::unroll(const float* image) {
  const Conv2dShape& s = shape_;
  float* window = static_cast<float*>(windows_.data());
  for (std::size_t i = 0; i < s.kernel_height; ++i) {
    const Inside vertical(s.out_height(), s.in_height, s.stride, s.padding, i);
    for (std::size_t j = 0; j < s.kernel_width; ++j, window += pixels(s)) {
      const Inside horizontal(s.out_width(), s.in_width, s.stride, s.padding, j);
      for (std::size_t row = vertical.begin; row < vertical.end; ++row) {
        // Unsigned arithmetic may wrap in between; the sum is inside the image.
        const float* from = image + (row * s.stride + i - s.padding) * s.in_width + j - s.padding;
        float* to = window + row * s.out_width();
        if (s.stride == 1)
          std::copy(from + horizontal.begin, from + horizontal.end, to + horizontal.begin);
        else
          for (std::size_t column = horizontal.begin; column < horizontal.end; ++column)
            to[column] = from[column * s.stride];
      }
    }
  }
}

void OneChannelWeightGradient::run(const float* x, const float* dy, float* dweights, float* dbias) {
  const std::size_t channels = shape_.out_channels;
  float* sums = static_cast<float*>(sums_.data());
  std::fill_n(sums, rows(shape_) * channels, 0.0f);
  for (std::size_t image = 0; image < shape_.batch; ++image) {
    unroll(x + image * shape_.in_height * shape_.in_width);
    product_.set(DNNL_ARG_WEIGHTS, const_cast<float*>(dy) + image * pixels(shape_) * channels);
    product_.run(context_);
  }
  for (std::size_t tap = 0; tap < taps(shape_); ++tap)
    for (std::size_t channel = 0; channel < channels; ++channel)
      dweights[channel * taps(shape_) + tap] = sums[tap * channels + channel];
  if (shape_.bias) std::copy_n(sums + taps(shape_) * channels, channels, dbias);
}

}  // namespace annulus::kernels::cpu
