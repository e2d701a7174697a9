#include "core/nn/layers/make_layer.h"
#include "kernels/activation.h"

namespace annulus {
namespace {

/// A ReLU that is not fused with the layer before it. In place where it may be.
class ReluLayer final : public Layer {
 public:
  explicit ReluLayer(bool masked_next) : masked_next_(masked_next) {}

  PlannedTensor plan_forward(MemoryPlan& plan, const PlannedTensor& x) override {
    x_ = x;
    plan.use(x_);
    return y_ = x.writable ? x : plan.add(x.shape, x.dtype);
  }

  PlannedTensor plan_backward(MemoryPlan& plan, const PlannedTensor& dy, bool) override {
    if (masked_next_) return dy;
    dy_ = dy;
    plan.use(dy_);
    plan.use(y_);
    return dx_ = dy.writable ? dy : plan.add(dy.shape, dy.dtype);
  }

  void forward(const Pass& pass) override {
    kernels::relu_forward(pass.stream, pass.tensor(x_), pass.tensor(y_));
  }

  void backward(const Pass& pass) override {
    if (!masked_next_)
      kernels::relu_backward(pass.stream, pass.tensor(dy_), pass.tensor(y_), pass.tensor(dx_));
  }

 private:
  bool masked_next_;
  PlannedTensor x_, y_, dy_, dx_;
};

}  // namespace

std::unique_ptr<Layer> make_relu_layer(const FusedLayer& fused) {
  return std::make_unique<ReluLayer>(fused.relu_masked_next);
}

}  // namespace annulus
