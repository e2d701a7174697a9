#include "bench/peers/cudnn_conv2d.h"

#include <cudnn.h>

#include <algorithm>
#include <utility>

#include "core/base/buffer.h"
#include "core/base/error.h"
#include "kernels/elementwise.h"

namespace annulus::bench {
namespace {

using kernels::Conv2dShape;

void check(cudnnStatus_t status, const char* call) {
  require<DeviceError>(status == CUDNN_STATUS_SUCCESS, "{} failed: {}", call, cudnnGetErrorString(status));
}
#define ANNULUS_CUDNN_CHECK(call) check((call), #call)

/// A cuDNN object with its destroyer.
template <class Handle, cudnnStatus_t (*create)(Handle*), cudnnStatus_t (*destroy)(Handle)>
class Owned {
 public:
  Owned() { check(create(&handle_), "creating a cuDNN object"); }
  ~Owned() { destroy(handle_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  operator Handle() const { return handle_; }

 private:
  Handle handle_;
};

using TensorDescriptor =
    Owned<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using FilterDescriptor =
    Owned<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using ConvolutionDescriptor =
    Owned<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor>;
using ActivationDescriptor =
    Owned<cudnnActivationDescriptor_t, cudnnCreateActivationDescriptor, cudnnDestroyActivationDescriptor>;

int extent(std::size_t value) { return static_cast<int>(value); }

class CudnnConv2d final : public kernels::Conv2d {
 public:
  CudnnConv2d(Device device, const Conv2dShape& shape)
      : shape_(shape),
        dtype_(activation_dtype(shape.precision)),
        guard_(device),
        weights_(device, shape.weights().elements() * size_of(dtype_)),
        scratch_(device, shape.weights().elements() * sizeof(float)) {
    const cudnnDataType_t type = dtype_ == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    const auto images = [&](cudnnTensorDescriptor_t descriptor, const Shape& s) {
      ANNULUS_CUDNN_CHECK(cudnnSetTensor4dDescriptor(descriptor, CUDNN_TENSOR_NHWC, type, extent(s[0]),
                                                     extent(s[3]), extent(s[1]), extent(s[2])));
    };
    images(x_, shape.input());
    images(y_, shape.output());
    images(bias_, Shape{1, 1, 1, shape.out_channels});
    ANNULUS_CUDNN_CHECK(cudnnSetFilter4dDescriptor(filter_, type, CUDNN_TENSOR_NHWC,
                                                   extent(shape.out_channels), extent(shape.in_channels),
                                                   extent(shape.kernel_height), extent(shape.kernel_width)));
    const int padding = extent(shape.padding), stride = extent(shape.stride);
    ANNULUS_CUDNN_CHECK(cudnnSetConvolution2dDescriptor(convolution_, padding, padding, stride, stride, 1, 1,
                                                        CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    ANNULUS_CUDNN_CHECK(cudnnSetConvolutionMathType(
        convolution_, shape.precision == Precision::f32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH));
    ANNULUS_CUDNN_CHECK(
        cudnnSetActivationDescriptor(identity_, CUDNN_ACTIVATION_IDENTITY, CUDNN_NOT_PROPAGATE_NAN, 0));
    find_algorithms();
  }

  void forward(StreamView stream, const Tensor& x, const Tensor& weights, const Tensor& bias,
               const Tensor& y) override {
    use(stream);
    reorder(stream, weights);
    ANNULUS_CUDNN_CHECK(cudnnConvolutionBiasActivationForward(
        handle_, &kOne, x_, x.data(), filter_, weights_.data(), convolution_, kForward, workspace_.data(),
        workspace_.bytes(), &kZero, y_, y.data(), bias_, bias.data(), identity_, y_, y.data()));
  }

  void backward_data(StreamView stream, const Tensor& dy, const Tensor& weights, const Tensor& relu_output,
                     const Tensor& dx) override {
    require<ConfigError>(relu_output.empty(), "cuDNN's data gradient takes no mask");
    use(stream);
    reorder(stream, weights);
    ANNULUS_CUDNN_CHECK(cudnnConvolutionBackwardData(handle_, &kOne, filter_, weights_.data(), y_, dy.data(),
                                                     convolution_, data_algorithm_, workspace_.data(),
                                                     workspace_.bytes(), &kZero, x_, dx.data()));
  }

  void backward_weights(StreamView stream, const Tensor& x, const Tensor& dy, const Tensor& dweights,
                        const Tensor& dbias) override {
    use(stream);
    ANNULUS_CUDNN_CHECK(cudnnConvolutionBackwardFilter(handle_, &kOne, x_, x.data(), y_, dy.data(),
                                                       convolution_, filter_algorithm_, workspace_.data(),
                                                       workspace_.bytes(), &kZero, filter_, weights_.data()));
    // dbias in the dtype of dy; it lands in scratch memory, as a program with that dtype would have it.
    void* const gradient = dtype_ == DType::f32 ? dbias.data() : scratch_.data();
    ANNULUS_CUDNN_CHECK(cudnnConvolutionBackwardBias(handle_, &kOne, y_, dy.data(), &kZero, bias_, gradient));
    if (std::exchange(known_, dweights.data()) == dweights.data()) return;
    const std::size_t taps = shape_.kernel_height * shape_.kernel_width;
    Tensor native(weights_.data(), {shape_.out_channels, taps, shape_.in_channels}, dtype_, stream.device());
    if (dtype_ == DType::bf16) {
      kernels::cast(stream, Tensor(scratch_.data(), dbias.shape(), dtype_, stream.device()), dbias);
      const Tensor wide(scratch_.data(), native.shape(), DType::f32, stream.device());
      kernels::cast(stream, native, wide);
      native = wide;
    }
    kernels::transpose_inner(stream, native,
                             dweights.reshaped({shape_.out_channels, shape_.in_channels, taps}));
  }

 private:
  static constexpr float kOne = 1, kZero = 0;
  // The only one that fuses the bias.
  static constexpr cudnnConvolutionFwdAlgo_t kForward = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;

  void use(StreamView stream) {
    ANNULUS_CUDNN_CHECK(cudnnSetStream(handle_, static_cast<cudaStream_t>(stream.handle())));
  }

  void find_algorithms() {
    int found = 0;
    cudnnConvolutionBwdDataAlgoPerf_t data[CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT];
    ANNULUS_CUDNN_CHECK(cudnnFindConvolutionBackwardDataAlgorithm(
        handle_, filter_, y_, convolution_, x_, CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT, &found, data));
    data_algorithm_ = data[0].algo;
    cudnnConvolutionBwdFilterAlgoPerf_t filter[CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT];
    ANNULUS_CUDNN_CHECK(cudnnFindConvolutionBackwardFilterAlgorithm(
        handle_, x_, y_, convolution_, filter_, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT, &found, filter));
    filter_algorithm_ = filter[0].algo;
    std::size_t forward_bytes = 0;
    ANNULUS_CUDNN_CHECK(cudnnGetConvolutionForwardWorkspaceSize(handle_, x_, filter_, convolution_, y_,
                                                                kForward, &forward_bytes));
    workspace_ = Buffer(weights_.device(),
                        std::max({forward_bytes, data[0].memory, filter[0].memory, std::size_t{16}}));
  }

  /// Weights [out, in, taps] as cuDNN wants them, [out, taps, in].
  void reorder(StreamView stream, const Tensor& weights) {
    if (std::exchange(known_, weights.data()) == weights.data()) return;
    const std::size_t taps = shape_.kernel_height * shape_.kernel_width;
    kernels::transpose_inner(
        stream, weights.reshaped({shape_.out_channels, shape_.in_channels, taps}),
        Tensor(weights_.data(), {shape_.out_channels, taps, shape_.in_channels}, dtype_, stream.device()));
  }

  Conv2dShape shape_;
  DType dtype_;
  DeviceGuard guard_;  // while it lives: cuDNN's handle is of the device that is current
  Owned<cudnnHandle_t, cudnnCreate, cudnnDestroy> handle_;
  TensorDescriptor x_, y_, bias_;
  FilterDescriptor filter_;
  ConvolutionDescriptor convolution_;
  ActivationDescriptor identity_;
  cudnnConvolutionBwdDataAlgo_t data_algorithm_{};
  cudnnConvolutionBwdFilterAlgo_t filter_algorithm_{};
  Buffer weights_, scratch_, workspace_;
  const void* known_ = nullptr;  // the tensor of the last reordering
};

}  // namespace

std::unique_ptr<kernels::Conv2d> make_cudnn_conv2d(Device device, const Conv2dShape& shape) {
  return std::make_unique<CudnnConv2d>(device, shape);
}

}  // namespace annulus::bench
