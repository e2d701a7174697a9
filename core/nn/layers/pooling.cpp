#include "core/nn/layers/make_layer.h"
#include "kernels/pool2d.h"

namespace annulus {
namespace {

class MaxPool2dLayer final : public Layer {
 public:
  MaxPool2dLayer(const kernels::Pool2dShape& shape, bool masks_relu)
      : shape_(shape), masks_relu_(masks_relu) {}

  PlannedTensor plan_forward(MemoryPlan& plan, const PlannedTensor& x) override {
    x_ = x;
    plan.use(x_);
    argmax_ = plan.add(shape_.output(), DType::u8);
    return y_ = plan.add(shape_.output(), x.dtype);
  }

  PlannedTensor plan_backward(MemoryPlan& plan, const PlannedTensor& dy, bool) override {
    dy_ = dy;
    plan.use(dy_);
    plan.use(argmax_);
    if (masks_relu_) plan.use(y_);
    return dx_ = plan.add(shape_.input(), x_.dtype);
  }

  void forward(const Pass& pass) override {
    kernels::max_pool2d_forward(pass.stream, shape_, pass.tensor(x_), pass.tensor(y_), pass.tensor(argmax_));
  }

  void backward(const Pass& pass) override {
    kernels::max_pool2d_backward(pass.stream, shape_, pass.tensor(dy_), pass.tensor(argmax_),
                                 masks_relu_ ? pass.tensor(y_) : Tensor(), pass.tensor(dx_));
  }

 private:
  kernels::Pool2dShape shape_;
  bool masks_relu_;
  PlannedTensor x_, y_, argmax_, dy_, dx_;
};

class GlobalAveragePoolLayer final : public Layer {
 public:
  PlannedTensor plan_forward(MemoryPlan& plan, const PlannedTensor& x) override {
    x_ = x;
    plan.use(x_);
    return y_ = plan.add({x.shape[0], x.shape[3]}, x.dtype);
  }

  PlannedTensor plan_backward(MemoryPlan& plan, const PlannedTensor& dy, bool) override {
    dy_ = dy;
    plan.use(dy_);
    return dx_ = plan.add(x_.shape, x_.dtype);
  }

  void forward(const Pass& pass) override {
    kernels::global_average_pool_forward(pass.stream, pass.tensor(x_), pass.tensor(y_));
  }

  void backward(const Pass& pass) override {
    kernels::global_average_pool_backward(pass.stream, pass.tensor(dy_), pass.tensor(dx_));
  }

 private:
  PlannedTensor x_, y_, dy_, dx_;
};

}  // namespace

std::unique_ptr<Layer> make_max_pool2d_layer(const FusedLayer& fused, std::size_t batch) {
  const LayerNode& node = *fused.node;
  const auto& spec = std::get<MaxPoolSpec>(node.spec.options);
  const kernels::Pool2dShape shape{.batch = batch,
                                   .in_height = node.input[0],
                                   .in_width = node.input[1],
                                   .channels = node.input[2],
                                   .window = spec.window,
                                   .stride = spec.stride};
  return std::make_unique<MaxPool2dLayer>(shape, fused.masks_relu);
}

std::unique_ptr<Layer> make_global_average_pool_layer() { return std::make_unique<GlobalAveragePoolLayer>(); }

}  // namespace annulus
