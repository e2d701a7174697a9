#include "kernels/activation.h"
#include "kernels/check.h"
#include "kernels/conv2d.h"
#include "kernels/onednn_cpu.h"

namespace annulus::kernels {

void Conv2dShape::check() const {
  require<ShapeError>(in_height > 0 && in_width > 0 && in_channels > 0 && out_channels > 0,
                      "conv2d: extents must not be empty, but are {} x {} x {} to {} channels", in_height,
                      in_width, in_channels, out_channels);
  require<ShapeError>(kernel_height > 0 && kernel_width > 0 && stride > 0,
                      "conv2d: kernel and stride must be at least 1, but are {} x {} and {}", kernel_height,
                      kernel_width, stride);
  require<ShapeError>(kernel_height <= in_height + 2 * padding && kernel_width <= in_width + 2 * padding,
                      "conv2d: a kernel of {} x {} does not fit into {} x {} padded by {}", kernel_height,
                      kernel_width, in_height, in_width, padding);
}

std::unique_ptr<Conv2d> make_conv2d(Device device, const Conv2dShape& shape) {
  shape.check();
#if ANNULUS_HAS_CUDA
  if (device.is_cuda()) return cuda::make_conv2d(device, shape);
#endif
  return cpu::make_conv2d(device, shape);
}

namespace cpu {
namespace {

// Activations stay channels-last; the weights are reordered from the arena's layout to the one that the
// primitive asks for, and back, inside each call.
class OnednnConv2d final : public Conv2d {
 public:
  explicit OnednnConv2d(const Conv2dShape& shape) : shape_(shape) {
    if (shape.batch > 0) plan();
  }

  void forward(StreamView stream, const Tensor& x, const Tensor& weights, const Tensor& bias,
               const Tensor& y) override {
    check("conv2d forward", stream, {x, "x"}, {weights, "weights"}, {bias, "bias"}, {y, "y"});
    if (shape_.batch == 0) return;
    forward_.set(DNNL_ARG_SRC, x.data());
    forward_.set(DNNL_ARG_WEIGHTS, forward_weights_.pack(context_, weights.data()));
    if (shape_.bias) forward_.set(DNNL_ARG_BIAS, bias.data());
    forward_.set(DNNL_ARG_DST, y.data());
    forward_.run(context_);
    if (shape_.relu) relu_forward(stream, y, y);
  }

  void backward_data(StreamView stream, const Tensor& dy, const Tensor& weights, const Tensor& dx) override {
    check("conv2d backward_data", stream, {dx, "dx"}, {weights, "weights"}, {Tensor(), nullptr}, {dy, "dy"});
    if (shape_.batch == 0) return;
    backward_data_.set(DNNL_ARG_DIFF_DST, dy.data());
    backward_data_.set(DNNL_ARG_WEIGHTS, backward_data_weights_.pack(context_, weights.data()));
    backward_data_.set(DNNL_ARG_DIFF_SRC, dx.data());
    backward_data_.run(context_);
  }

  void backward_weights(StreamView stream, const Tensor& x, const Tensor& dy, const Tensor& dweights,
                        const Tensor& dbias) override {
    check("conv2d backward_weights", stream, {x, "x"}, {dweights, "dweights"}, {dbias, "dbias"}, {dy, "dy"});
    if (shape_.batch == 0) {
      zero_bytes(stream, dweights.data(), dweights.bytes());
      if (shape_.bias) zero_bytes(stream, dbias.data(), dbias.bytes());
      return;
    }
    backward_weights_.set(DNNL_ARG_SRC, x.data());
    backward_weights_.set(DNNL_ARG_DIFF_DST, dy.data());
    backward_weights_.set(DNNL_ARG_DIFF_WEIGHTS, weight_gradient_.memory(dweights.data()));
    if (shape_.bias) backward_weights_.set(DNNL_ARG_DIFF_BIAS, dbias.data());
    backward_weights_.run(context_);
    weight_gradient_.unpack(context_, dweights.data());
  }

 private:
  struct Argument {
    const Tensor& tensor;
    const char* name;
  };

  void check(const char* op, StreamView stream, const Argument& x, const Argument& weights,
             const Argument& bias, const Argument& y) const {
    const Device device = stream.device();
    check_tensor(op, x.name, x.tensor, shape_.input(), device);
    check_tensor(op, weights.name, weights.tensor, shape_.weights(), device);
    check_tensor(op, y.name, y.tensor, shape_.output(), device);
    if (shape_.bias && bias.name != nullptr)
      check_tensor(op, bias.name, bias.tensor, {shape_.out_channels}, device);
  }

  void plan() {
    const Conv2dShape& s = shape_;
    const auto x =
        f32_desc({dim(s.batch), dim(s.in_channels), dim(s.in_height), dim(s.in_width)}, FormatTag::nhwc);
    const auto y = f32_desc({dim(s.batch), dim(s.out_channels), dim(s.out_height()), dim(s.out_width())},
                            FormatTag::nhwc);
    const Dims weight_dims{dim(s.out_channels), dim(s.in_channels), dim(s.kernel_height),
                           dim(s.kernel_width)};
    const auto plain = f32_desc(weight_dims, FormatTag::oihw);
    const auto any = f32_desc(weight_dims, FormatTag::any);
    const auto bias = s.bias ? f32_desc({dim(s.out_channels)}, FormatTag::x) : dnnl::memory::desc();
    const Dims strides{dim(s.stride), dim(s.stride)}, padding{dim(s.padding), dim(s.padding)};
    // What the stride leaves over at the far sides is not padded.
    const Dims far_padding{
        dim((s.out_height() - 1) * s.stride + s.kernel_height) - dim(s.in_height + s.padding),
        dim((s.out_width() - 1) * s.stride + s.kernel_width) - dim(s.in_width + s.padding)};
    const auto direct = dnnl::algorithm::convolution_direct;

    using Forward = dnnl::convolution_forward;
    const Forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, direct, x, any, bias, y, strides, padding, far_padding},
        user_scratchpad(), context_.engine);
    forward_weights_ = PackedWeights::read(context_, plain, forward.weights_desc());
    forward_ = OnednnPrimitive::plan<Forward>(context_, forward,
                                              {{DNNL_ARG_SRC, x},
                                               {DNNL_ARG_WEIGHTS, forward.weights_desc()},
                                               {DNNL_ARG_BIAS, bias},
                                               {DNNL_ARG_DST, y}});

    using BackwardData = dnnl::convolution_backward_data;
    const BackwardData::primitive_desc backward_data({direct, x, any, y, strides, padding, far_padding},
                                                     user_scratchpad(), context_.engine, forward);
    backward_data_weights_ = PackedWeights::read(context_, plain, backward_data.weights_desc());
    backward_data_ = OnednnPrimitive::plan<BackwardData>(
        context_, backward_data,
        {{DNNL_ARG_DIFF_DST, y}, {DNNL_ARG_WEIGHTS, backward_data.weights_desc()}, {DNNL_ARG_DIFF_SRC, x}});

    using BackwardWeights = dnnl::convolution_backward_weights;
    const BackwardWeights::primitive_desc backward_weights(
        {direct, x, any, bias, y, strides, padding, far_padding}, user_scratchpad(), context_.engine,
        forward);
    weight_gradient_ = PackedWeights::written(context_, backward_weights.diff_weights_desc(), plain);
    backward_weights_ =
        OnednnPrimitive::plan<BackwardWeights>(context_, backward_weights,
                                               {{DNNL_ARG_SRC, x},
                                                {DNNL_ARG_DIFF_DST, y},
                                                {DNNL_ARG_DIFF_WEIGHTS, backward_weights.diff_weights_desc()},
                                                {DNNL_ARG_DIFF_BIAS, bias}});
  }

  const Conv2dShape shape_;
  OnednnContext context_;
  OnednnPrimitive forward_, backward_data_, backward_weights_;
  PackedWeights forward_weights_, backward_data_weights_, weight_gradient_;
};

}  // namespace

std::unique_ptr<Conv2d> make_conv2d(Device, const Conv2dShape& shape) {
  try {
    return std::make_unique<OnednnConv2d>(shape);
  } catch (const dnnl::error& error) {
    fail<DeviceError>("cpu: oneDNN cannot plan a convolution of {} by {}: {}", shape.input().to_string(),
                      shape.weights().to_string(), error.what());
  }
}

}  // namespace cpu
}  // namespace annulus::kernels
