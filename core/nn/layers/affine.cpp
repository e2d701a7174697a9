// Convolutions and linear layers: the same layer around two kernels with one interface.
#include <utility>

#include "core/nn/layers/make_layer.h"
#include "kernels/activation.h"
#include "kernels/conv2d.h"
#include "kernels/linear.h"

namespace annulus {
namespace {

template <class Kernel>
class AffineLayer final : public Layer {
 public:
  AffineLayer(const FusedLayer& fused, std::size_t batch, const ParameterArena& arena, bool bias,
              std::unique_ptr<Kernel> kernel)
      : mask_(fused.relu && !fused.relu_masked_next),
        masks_relu_(fused.masks_relu),
        output_(with_batch(batch, fused.node->output)),
        weight_(&arena.find(fused.node->name + ".weight")),
        bias_(bias ? &arena.find(fused.node->name + ".bias") : nullptr),
        kernel_(std::move(kernel)) {}

  PlannedTensor plan_forward(MemoryPlan& plan, const PlannedTensor& x) override {
    x_ = x;
    plan.use(x_);
    return y_ = plan.add(output_, x.dtype);
  }

  PlannedTensor plan_backward(MemoryPlan& plan, const PlannedTensor& dy, bool input_gradient) override {
    dy_ = masked_dy_ = dy;
    if (mask_) {
      plan.use(y_);
      if (!dy.writable) masked_dy_ = plan.add(output_, dy.dtype);
    }
    plan.use(dy_);
    plan.use(x_);
    return dx_ = input_gradient ? plan.add(x_.shape, x_.dtype) : PlannedTensor();
  }

  void forward(const Pass& pass) override {
    kernel_->forward(pass.stream, pass.tensor(x_), pass.compute_weights(*weight_), bias(pass),
                     pass.tensor(y_));
  }

  void backward(const Pass& pass) override {
    const Tensor dy = pass.tensor(masked_dy_);
    if (mask_) kernels::relu_backward(pass.stream, pass.tensor(dy_), pass.tensor(y_), dy);
    kernel_->backward_weights(pass.stream, pass.tensor(x_), dy, pass.gradient(*weight_),
                              bias_ == nullptr ? Tensor() : pass.gradient(*bias_));
    if (dx_.empty()) return;
    kernel_->backward_data(pass.stream, dy, pass.compute_weights(*weight_),
                           masks_relu_ ? pass.tensor(x_) : Tensor(), pass.tensor(dx_));
  }

 private:
  Tensor bias(const Pass& pass) const { return bias_ == nullptr ? Tensor() : pass.compute_weights(*bias_); }

  bool mask_;        // the gradient of the ReLU behind this layer is taken here
  bool masks_relu_;  // and so is that of the ReLU before it, in dx
  Shape output_;
  const ArenaSlice* weight_;
  const ArenaSlice* bias_;
  std::unique_ptr<Kernel> kernel_;
  PlannedTensor x_, y_, dy_, masked_dy_, dx_;
};

}  // namespace

std::unique_ptr<Layer> make_conv2d_layer(const FusedLayer& fused, std::size_t batch,
                                         const ParameterArena& arena) {
  const LayerNode& node = *fused.node;
  const auto& spec = std::get<Conv2dSpec>(node.spec.options);
  const kernels::Conv2dShape shape{.batch = batch,
                                   .in_height = node.input[0],
                                   .in_width = node.input[1],
                                   .in_channels = node.input[2],
                                   .out_channels = spec.channels,
                                   .kernel_height = spec.kernel,
                                   .kernel_width = spec.kernel,
                                   .stride = spec.stride,
                                   .padding = spec.padding,
                                   .bias = spec.bias,
                                   .relu = fused.relu,
                                   .precision = arena.precision()};
  return std::make_unique<AffineLayer<kernels::Conv2d>>(fused, batch, arena, spec.bias,
                                                        kernels::make_conv2d(arena.device(), shape));
}

std::unique_ptr<Layer> make_linear_layer(const FusedLayer& fused, std::size_t batch,
                                         const ParameterArena& arena) {
  const LayerNode& node = *fused.node;
  const auto& spec = std::get<LinearSpec>(node.spec.options);
  const kernels::LinearShape shape{.batch = batch,
                                   .in_features = node.input[0],
                                   .out_features = spec.features,
                                   .bias = spec.bias,
                                   .relu = fused.relu,
                                   .precision = arena.precision()};
  return std::make_unique<AffineLayer<kernels::Linear>>(fused, batch, arena, spec.bias,
                                                        kernels::make_linear(arena.device(), shape));
}

}  // namespace annulus
