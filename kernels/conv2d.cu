// Convolution as an implicit matrix product. With taps = kernel height * kernel width * channels:
//   forward           C = y,  m = output pixels, n = out channels, k = taps over in channels
//   backward_data     C = dx, m = input pixels,  n = in channels,  k = taps over out channels
//   backward_weights  C = dW, m = out channels,  n = taps over in channels, k = output pixels
// The first two read the weights in [taps][n] order, which a small kernel makes of OIHW at each call.
#include "core/base/buffer.h"
#include "kernels/conv2d.h"
#include "kernels/device/column_sums.h"
#include "kernels/device/image_operand.h"
#include "kernels/device/matrix_operand.h"

namespace annulus::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;

/// reordered[(tap * inner + c) * n + i] = weights[OIHW]: c counts in channels and i out channels if
/// `forward`, the other way round if not.
__global__ void reorder_weights_kernel(std::size_t outputs, std::size_t inputs, std::size_t taps,
                                       bool forward, const float* weights, float* reordered) {
  for (std::size_t i = global_thread(); i < outputs * inputs * taps; i += global_threads()) {
    const std::size_t tap = i % taps;
    const std::size_t input = i / taps % inputs;
    const std::size_t output = i / taps / inputs;
    reordered[forward ? (tap * inputs + input) * outputs + output
                      : (tap * outputs + output) * inputs + input] = weights[i];
  }
}

/// Writes C [out channels, taps over in channels] to OIHW.
struct WeightGradientOutput {
  float* dweights;
  std::size_t outputs, inputs, taps;

  template <int Width>
  __device__ void write(std::size_t m, std::size_t n, const Pack<Width>& pack) const {
    if (m >= outputs) return;
    for (int i = 0; i < Width; ++i) {
      if (n + i >= inputs * taps) return;
      dweights[(m * inputs + (n + i) % inputs) * taps + (n + i) / inputs] = pack.value[i];
    }
  }
};

class ImplicitGemmConv2d final : public Conv2d {
 public:
  ImplicitGemmConv2d(Device device, const Conv2dShape& shape)
      : shape_(shape),
        taps_(shape.kernel_height * shape.kernel_width),
        in_pixels_(shape.batch * shape.in_height * shape.in_width),
        out_pixels_(shape.batch * shape.out_height() * shape.out_width()),
        forward_({out_pixels_, shape.out_channels, taps_ * shape.in_channels}),
        data_({in_pixels_, shape.in_channels, taps_ * shape.out_channels}),
        weights_({shape.out_channels, taps_ * shape.in_channels, out_pixels_}),
        index_(shape) {
    constexpr std::size_t kMost = std::size_t{1} << 31;  // FastDivisor
    for (const std::size_t count : {in_pixels_, out_pixels_, forward_.shape.k, data_.shape.k})
      require<ShapeError>(count < kMost,
                          "a convolution of input {} and weights {} has {} pixels or taps; at most {} are "
                          "supported: use a smaller micro-batch",
                          shape.input().to_string(), shape.weights().to_string(), count, kMost - 1);
    reordered_ = Buffer(device, shape.weights().elements() * sizeof(float));
    workspace_ =
        Buffer(device, sizeof(float) * std::max({forward_.workspace_elements(), data_.workspace_elements(),
                                                 weights_.workspace_elements(),
                                                 column_sums_chunks(out_pixels_) * shape.out_channels}));
  }

  void forward(StreamView stream, const Tensor& x, const Tensor& weights, const Tensor& bias,
               const Tensor& y) override {
    reorder(stream, weights, true);
    const MatrixOutput output{y.as<float>(),       out_pixels_,
                              shape_.out_channels, shape_.bias ? bias.as<float>() : nullptr,
                              shape_.relu,         nullptr};
    if (packed(x))
      forward_product<4>(stream, x, output);
    else
      forward_product<1>(stream, x, output);
  }

  void backward_data(StreamView stream, const Tensor& dy, const Tensor& weights, const Tensor& relu_output,
                     const Tensor& dx) override {
    reorder(stream, weights, false);
    const MatrixOutput output{dx.as<float>(), in_pixels_, shape_.in_channels,
                              nullptr,        false,      relu_output.as<float>()};
    if (packed(dy))
      data_product<4>(stream, dy, output);
    else
      data_product<1>(stream, dy, output);
  }

  void backward_weights(StreamView stream, const Tensor& x, const Tensor& dy, const Tensor& dweights,
                        const Tensor& dbias) override {
    const WeightGradientOutput output{dweights.as<float>(), shape_.out_channels, shape_.in_channels, taps_};
    if (packed(x) && packed(dy))
      weight_product<4>(stream, x, dy, output);
    else
      weight_product<1>(stream, x, dy, output);
    if (!dbias.empty())
      column_sums(stream, out_pixels_, shape_.out_channels, dy.as<float>(), workspace(), dbias.as<float>());
  }

 private:
  template <int Width>
  void forward_product(StreamView stream, const Tensor& x, const MatrixOutput& output) {
    const PatchOperand<true, Width> a{x.as<float>(), static_cast<std::uint32_t>(out_pixels_), index_};
    gemm(stream, forward_, a,
         MatrixOperand<false, Width>{reordered(), shape_.out_channels, shape_.out_channels}, output,
         workspace());
  }

  template <int Width>
  void data_product(StreamView stream, const Tensor& dy, const MatrixOutput& output) {
    const TouchedOperand<Width> a{dy.as<float>(), static_cast<std::uint32_t>(in_pixels_), index_};
    gemm(stream, data_, a, MatrixOperand<false, Width>{reordered(), shape_.in_channels, shape_.in_channels},
         output, workspace());
  }

  template <int Width>
  void weight_product(StreamView stream, const Tensor& x, const Tensor& dy,
                      const WeightGradientOutput& output) {
    const PatchOperand<false, Width> b{x.as<float>(), static_cast<std::uint32_t>(weights_.shape.n), index_};
    gemm(stream, weights_,
         MatrixOperand<false, Width>{dy.as<float>(), shape_.out_channels, shape_.out_channels}, b, output,
         workspace());
  }

  void reorder(StreamView stream, const Tensor& weights, bool forward) {
    launch(stream, {grid_stride_blocks(weights.elements(), kThreads)}, kThreads, 0, reorder_weights_kernel,
           shape_.out_channels, shape_.in_channels, taps_, forward, weights.as<float>(), reordered());
  }

  /// Packs of four channels need multiples of four of both, and aligned images.
  bool packed(const Tensor& images) const {
    return shape_.in_channels % kPackWidth == 0 && shape_.out_channels % kPackWidth == 0 &&
           is_pack_aligned(images.data());
  }

  float* reordered() const { return static_cast<float*>(reordered_.data()); }
  float* workspace() const { return static_cast<float*>(workspace_.data()); }

  Conv2dShape shape_;
  std::size_t taps_, in_pixels_, out_pixels_;
  GemmPlan forward_, data_, weights_;
  ConvolutionIndex index_;
  Buffer reordered_, workspace_;
};

}  // namespace

std::unique_ptr<Conv2d> make_conv2d(Device device, const Conv2dShape& shape) {
  shape.check();
  return std::make_unique<ImplicitGemmConv2d>(device, shape);
}

}  // namespace annulus::kernels::cuda
