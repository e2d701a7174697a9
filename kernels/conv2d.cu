// Convolution as an implicit matrix product. With taps = kernel height * kernel width * channels:
//   forward           C = y,  m = output pixels, n = out channels, k = taps over in channels
//   backward_data     C = dx, m = input pixels,  n = in channels,  k = taps over out channels
//   backward_weights  C = dW, m = taps over in channels, n = out channels, k = output pixels
// The first two read the weights in [taps][n] order, which a small kernel makes of OIHW at each call.
#include "core/base/buffer.h"
#include "kernels/conv2d.h"
#include "kernels/device/column_sums.h"
#include "kernels/device/gemm.h"
#include "kernels/device/image_operand.h"
#include "kernels/device/matrix_operand.h"

namespace annulus::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;

/// reordered[(tap * inner + c) * n + i] = weights[OIHW]: c counts in channels and i out channels if
/// `forward`, the other way round if not.
template <class T>
__global__ void reorder_weights_kernel(std::size_t outputs, std::size_t inputs, std::size_t taps,
                                       bool forward, const T* weights, T* reordered) {
  for (std::size_t i = global_thread(); i < outputs * inputs * taps; i += global_threads()) {
    const std::size_t tap = i % taps;
    const std::size_t input = i / taps % inputs;
    const std::size_t output = i / taps / inputs;
    reordered[forward ? (tap * inputs + input) * outputs + output
                      : (tap * outputs + output) * inputs + input] = weights[i];
  }
}

/// Writes C [taps over in channels, out channels] to OIHW.
struct WeightGradientOutput {
  static constexpr int kWidth = 4;

  float* dweights;
  std::uint32_t inputs, taps, outputs;
  FastDivisor by_inputs;

  template <int Width>
  __device__ void write(std::size_t m, std::size_t n, const Pack<Width>& pack) const {
    if (m >= std::size_t{inputs} * taps) return;
    auto input = static_cast<std::uint32_t>(m);
    const std::uint32_t tap = by_inputs.divide(input);
#pragma unroll
    for (int i = 0; i < Width; ++i) {
      if (n + i >= outputs) return;
      dweights[((n + i) * inputs + input) * taps + tap] = pack.value[i];
    }
  }
};

template <Precision precision>
class ImplicitGemmConv2d final : public Conv2d {
 public:
  ImplicitGemmConv2d(Device device, const Conv2dShape& shape)
      : shape_(supported(shape)),
        taps_(shape.kernel_height * shape.kernel_width),
        in_pixels_(shape.batch * shape.in_height * shape.in_width),
        out_pixels_(shape.batch * shape.out_height() * shape.out_width()),
        forward_({out_pixels_, shape.out_channels, taps_ * shape.in_channels}, precision),
        data_({in_pixels_, shape.in_channels, taps_ * shape.out_channels}, precision),
        weights_({taps_ * shape.in_channels, shape.out_channels, out_pixels_}, precision),
        index_(shape) {
    reordered_ = Buffer(device, shape.weights().elements() * sizeof(T));
    workspace_ =
        Buffer(device, sizeof(float) * std::max({forward_.workspace_elements(), data_.workspace_elements(),
                                                 weights_.workspace_elements(),
                                                 column_sums_chunks(out_pixels_) * shape.out_channels}));
  }

  void forward(StreamView stream, const Tensor& x, const Tensor& weights, const Tensor& bias,
               const Tensor& y) override {
    reorder(stream, weights, true);
    const MatrixOutput<T> output(y.as<T>(), out_pixels_, shape_.out_channels,
                                 shape_.bias ? bias.as<T>() : nullptr, shape_.relu);
    if (packed(x))
      forward_product<kPack>(stream, x, output);
    else
      forward_product<1>(stream, x, output);
  }

  void backward_data(StreamView stream, const Tensor& dy, const Tensor& weights, const Tensor& relu_output,
                     const Tensor& dx) override {
    reorder(stream, weights, false);
    const MatrixOutput<T> output(dx.as<T>(), in_pixels_, shape_.in_channels, nullptr, false,
                                 relu_output.empty() ? nullptr : relu_output.as<T>());
    if (packed(dy))
      data_product<kPack>(stream, dy, output);
    else
      data_product<1>(stream, dy, output);
  }

  void backward_weights(StreamView stream, const Tensor& x, const Tensor& dy, const Tensor& dweights,
                        const Tensor& dbias) override {
    if (packed(x) && packed(dy))
      weight_product<kPack>(stream, x, dy, dweights);
    else
      weight_product<1>(stream, x, dy, dweights);
    if (!dbias.empty())
      column_sums(stream, out_pixels_, shape_.out_channels, dy.as<T>(), workspace(), dbias.as<float>());
  }

 private:
  using T = ElementOf<precision>;
  static constexpr int kPack = 16 / sizeof(T);

  template <int Width>
  void forward_product(StreamView stream, const Tensor& x, const MatrixOutput<T>& output) {
    gemm<precision>(stream, forward_,
                    PatchOperand<T, true, Width>{x.as<T>(), static_cast<std::uint32_t>(out_pixels_), index_},
                    MatrixOperand<T, false, Width>{reordered(), shape_.out_channels, shape_.out_channels},
                    output, workspace());
  }

  template <int Width>
  void data_product(StreamView stream, const Tensor& dy, const MatrixOutput<T>& output) {
    gemm<precision>(stream, data_,
                    TouchedOperand<T, Width>{dy.as<T>(), static_cast<std::uint32_t>(in_pixels_), index_},
                    MatrixOperand<T, false, Width>{reordered(), shape_.in_channels, shape_.in_channels},
                    output, workspace());
  }

  template <int Width>
  void weight_product(StreamView stream, const Tensor& x, const Tensor& dy, const Tensor& dweights) {
    const auto narrow = [](std::size_t extent) { return static_cast<std::uint32_t>(extent); };
    const WeightGradientOutput output{dweights.as<float>(), narrow(shape_.in_channels), narrow(taps_),
                                      narrow(shape_.out_channels), FastDivisor(narrow(shape_.in_channels))};
    gemm<precision>(stream, weights_,
                    PatchOperand<T, false, Width>{x.as<T>(), narrow(weights_.shape.m), index_},
                    MatrixOperand<T, false, Width>{dy.as<T>(), shape_.out_channels, shape_.out_channels},
                    output, workspace());
  }

  /// Throws ShapeError unless 31 bits number pixels and taps: FastDivisor divides no more.
  static const Conv2dShape& supported(const Conv2dShape& s) {
    constexpr std::size_t kMost = std::size_t{1} << 31;
    const std::size_t taps = s.kernel_height * s.kernel_width;
    for (const std::size_t count :
         {s.batch * s.in_height * s.in_width, s.batch * s.out_height() * s.out_width(), taps * s.in_channels,
          taps * s.out_channels, s.in_height + 2 * s.padding, s.in_width + 2 * s.padding, s.stride})
      require<ShapeError>(
          count < kMost,
          "a convolution of input {} and weights {} has {} pixels, padded rows or taps; at most {} "
          "are supported: use a smaller micro-batch",
          s.input().to_string(), s.weights().to_string(), count, kMost - 1);
    return s;
  }

  void reorder(StreamView stream, const Tensor& weights, bool forward) {
    launch(stream, {grid_stride_blocks(weights.elements(), kThreads)}, kThreads, 0, reorder_weights_kernel<T>,
           shape_.out_channels, shape_.in_channels, taps_, forward, weights.as<T>(), reordered());
  }

  /// Packs of channels need multiples of their width of both, and aligned images.
  bool packed(const Tensor& images) const {
    return shape_.in_channels % kPack == 0 && shape_.out_channels % kPack == 0 &&
           is_pack_aligned(images.data());
  }

  T* reordered() const { return static_cast<T*>(reordered_.data()); }
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
  switch (shape.precision) {
    case Precision::tf32:
      return std::make_unique<ImplicitGemmConv2d<Precision::tf32>>(device, shape);
    case Precision::bf16:
      return std::make_unique<ImplicitGemmConv2d<Precision::bf16>>(device, shape);
    case Precision::f32:
      break;
  }
  return std::make_unique<ImplicitGemmConv2d<Precision::f32>>(device, shape);
}

}  // namespace annulus::kernels::cuda
