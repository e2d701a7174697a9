#include <optional>

#include "kernels/activation.h"
#include "kernels/check.h"
#include "kernels/conv2d.h"
#include "kernels/one_channel_cpu.h"
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

using Forward = dnnl::convolution_forward;
using BackwardData = dnnl::convolution_backward_data;
using BackwardWeights = dnnl::convolution_backward_weights;

// The shape in oneDNN's words. Activations are channels-last; a primitive may choose how weights lie.
struct Description {
  explicit Description(const Conv2dShape& shape)
      : x(f32_desc({dim(shape.batch), dim(shape.in_channels), dim(shape.in_height), dim(shape.in_width)},
                   FormatTag::nhwc)),
        y(f32_desc(
            {dim(shape.batch), dim(shape.out_channels), dim(shape.out_height()), dim(shape.out_width())},
            FormatTag::nhwc)),
        weights(f32_desc({dim(shape.out_channels), dim(shape.in_channels), dim(shape.kernel_height),
                          dim(shape.kernel_width)},
                         FormatTag::any)),
        plain_weights(f32_desc(weights.dims(), FormatTag::oihw)),
        bias(shape.bias ? f32_desc({dim(shape.out_channels)}, FormatTag::x) : dnnl::memory::desc()),
        strides{dim(shape.stride), dim(shape.stride)},
        padding{dim(shape.padding), dim(shape.padding)},
        // Less than the padding, or negative, where the last window ends before the padded image does.
        far_padding{dim((shape.out_height() - 1) * shape.stride + shape.kernel_height) -
                        dim(shape.in_height + shape.padding),
                    dim((shape.out_width() - 1) * shape.stride + shape.kernel_width) -
                        dim(shape.in_width + shape.padding)} {}

  Forward::primitive_desc forward(const dnnl::engine& engine) const {
    return {
        {dnnl::prop_kind::forward_training, kAlgorithm, x, weights, bias, y, strides, padding, far_padding},
        user_scratchpad(),
        engine};
  }

  BackwardData::primitive_desc backward_data(const dnnl::engine& engine) const {
    return {{kAlgorithm, x, weights, y, strides, padding, far_padding},
            user_scratchpad(),
            engine,
            forward(engine)};
  }

  BackwardWeights::primitive_desc backward_weights(const dnnl::engine& engine) const {
    return {{kAlgorithm, x, weights, bias, y, strides, padding, far_padding},
            user_scratchpad(),
            engine,
            forward(engine)};
  }

  static constexpr dnnl::algorithm kAlgorithm = dnnl::algorithm::convolution_direct;
  dnnl::memory::desc x, y, weights, plain_weights, bias;
  Dims strides, padding, far_padding;
};

// Weights are reordered from the arena's layout to the one that a primitive prefers, and back, inside each
// call.
class OnednnConv2d final : public Conv2d {
 public:
  explicit OnednnConv2d(const Conv2dShape& shape) : shape_(shape) {
    if (shape.batch == 0) return;
    plan_forward();
    plan_backward_data();
    if (OneChannelWeightGradient::suits(shape))
      one_channel_.emplace(shape);
    else
      plan_backward_weights();
  }

  void forward(StreamView stream, const Tensor& x, const Tensor& weights, const Tensor& bias,
               const Tensor& y) override {
    check("conv2d forward", {x, "x"}, {weights, "weights"}, {bias, "bias"}, {y, "y"});
    if (shape_.batch == 0) return;
    forward_.set(DNNL_ARG_WEIGHTS, forward_weights_.pack(context_, weights.data()));
    if (shape_.bias) forward_.set(DNNL_ARG_BIAS, bias.data());
    forward_.set(DNNL_ARG_SRC, x.data());
    forward_.set(DNNL_ARG_DST, y.data());
    forward_.run(context_);
    // Not a post-op: oneDNN's ReLU turns NaN into 0, which would hide a run that has diverged.
    if (shape_.relu) relu_forward(stream, y, y);
  }

  void backward_data(StreamView stream, const Tensor& dy, const Tensor& weights, const Tensor& relu_output,
                     const Tensor& dx) override {
    check("conv2d backward_data", {dx, "dx"}, {weights, "weights"}, {Tensor(), nullptr}, {dy, "dy"});
    if (shape_.batch == 0) return;
    backward_data_.set(DNNL_ARG_DIFF_DST, dy.data());
    backward_data_.set(DNNL_ARG_WEIGHTS, backward_data_weights_.pack(context_, weights.data()));
    backward_data_.set(DNNL_ARG_DIFF_SRC, dx.data());
    backward_data_.run(context_);
    if (!relu_output.empty()) relu_backward(stream, dx, relu_output, dx);
  }

  void backward_weights(StreamView stream, const Tensor& x, const Tensor& dy, const Tensor& dweights,
                        const Tensor& dbias) override {
    check("conv2d backward_weights", {x, "x"}, {dweights, "dweights"}, {dbias, "dbias"}, {dy, "dy"});
    float* bias = shape_.bias ? dbias.as<float>() : nullptr;
    if (shape_.batch == 0) {
      zero_bytes(stream, dweights.data(), dweights.bytes());
      if (shape_.bias) zero_bytes(stream, bias, dbias.bytes());
    } else if (one_channel_) {
      one_channel_->run(x.as<float>(), dy.as<float>(), dweights.as<float>(), bias);
    } else {
      backward_weights_.set(DNNL_ARG_SRC, x.data());
      backward_weights_.set(DNNL_ARG_DIFF_DST, dy.data());
      backward_weights_.set(DNNL_ARG_DIFF_WEIGHTS, weight_gradient_.memory(dweights.data()));
      if (shape_.bias) backward_weights_.set(DNNL_ARG_DIFF_BIAS, bias);
      backward_weights_.run(context_);
      weight_gradient_.unpack(context_, dweights.data());
    }
  }

 private:
  struct Argument {
    const Tensor& tensor;
    const char* name;
  };

  void check(const char* op, const Argument& x, const Argument& weights, const Argument& bias,
             const Argument& y) const {
    const Device device = Device::cpu();
    check_tensor(op, x.name, x.tensor, shape_.input(), device);
    check_tensor(op, weights.name, weights.tensor, shape_.weights(), device);
    check_tensor(op, y.name, y.tensor, shape_.output(), device);
    if (shape_.bias && bias.name != nullptr)
      check_tensor(op, bias.name, bias.tensor, {shape_.out_channels}, device);
  }

  void plan_forward() {
    const Description shape(shape_);
    const auto primitive = shape.forward(context_.engine);
    forward_weights_ = PackedWeights::read(context_, shape.plain_weights, primitive.weights_desc());
    forward_ = OnednnPrimitive::plan<Forward>(context_, primitive,
                                              {{DNNL_ARG_SRC, shape.x},
                                               {DNNL_ARG_WEIGHTS, primitive.weights_desc()},
                                               {DNNL_ARG_BIAS, shape.bias},
                                               {DNNL_ARG_DST, shape.y}});
  }

  void plan_backward_data() {
    const Description shape(shape_);
    const auto primitive = shape.backward_data(context_.engine);
    backward_data_weights_ = PackedWeights::read(context_, shape.plain_weights, primitive.weights_desc());
    backward_data_ = OnednnPrimitive::plan<BackwardData>(context_, primitive,
                                                         {{DNNL_ARG_DIFF_DST, shape.y},
                                                          {DNNL_ARG_WEIGHTS, primitive.weights_desc()},
                                                          {DNNL_ARG_DIFF_SRC, shape.x}});
  }

  void plan_backward_weights() {
    const Description shape(shape_);
    const auto primitive = shape.backward_weights(context_.engine);
    weight_gradient_ = PackedWeights::written(context_, primitive.diff_weights_desc(), shape.plain_weights);
    backward_weights_ =
        OnednnPrimitive::plan<BackwardWeights>(context_, primitive,
                                               {{DNNL_ARG_SRC, shape.x},
                                                {DNNL_ARG_DIFF_DST, shape.y},
                                                {DNNL_ARG_DIFF_WEIGHTS, primitive.diff_weights_desc()},
                                                {DNNL_ARG_DIFF_BIAS, shape.bias}});
  }

  const Conv2dShape shape_;
  OnednnContext context_;
  OnednnPrimitive forward_, backward_data_, backward_weights_;
  PackedWeights forward_weights_, backward_data_weights_, weight_gradient_;
  std::optional<OneChannelWeightGradient> one_channel_;  // in place of backward_weights_
};

}  // namespace

std::unique_ptr<Conv2d> make_conv2d(Device, const Conv2dShape& shape) {
  check_precision("conv2d", shape.precision);
  try {
    return std::make_unique<OnednnConv2d>(shape);
  } catch (const dnnl::error& error) {
    fail<DeviceError>("cpu: oneDNN cannot plan a convolution of {} by {}: {}", shape.input().to_string(),
                      shape.weights().to_string(), error.what());
  }
}

}  // namespace cpu
}  // namespace annulus::kernels
