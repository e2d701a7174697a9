#include "kernels/dropout.h"

#include "core/nn/layers/make_layer.h"

namespace annulus {
namespace {

/// Dropout in training, nothing in evaluation. In place where it may be: no layer needs an output that
/// dropout has overwritten, because a ReLU's gradient is zero where its output was dropped anyway.
class DropoutLayer final : public Layer {
 public:
  DropoutLayer(std::uint32_t layer, float probability) : layer_(layer), probability_(probability) {}

  PlannedTensor plan_forward(MemoryPlan& plan, const PlannedTensor& x) override {
    x_ = x;
    plan.use(x_);
    return y_ = x.writable ? x : plan.add(x.shape, x.dtype);
  }

  PlannedTensor plan_backward(MemoryPlan& plan, const PlannedTensor& dy, bool) override {
    dy_ = dy;
    plan.use(dy_);
    return dx_ = dy.writable ? dy : plan.add(dy.shape, dy.dtype);
  }

  void forward(const Pass& pass) override {
    const Tensor x = pass.tensor(x_), y = pass.tensor(y_);
    if (pass.training)
      apply(pass, x, y);
    else if (x.data() != y.data())
      copy_bytes(pass.stream, y.data(), x.data(), x.bytes());
  }

  void backward(const Pass& pass) override { apply(pass, pass.tensor(dy_), pass.tensor(dx_)); }

 private:
  void apply(const Pass& pass, const Tensor& from, const Tensor& to) const {
    kernels::DropoutKey key = pass.dropout;
    key.layer = layer_;
    kernels::dropout(pass.stream, key, probability_, from, to);
  }

  std::uint32_t layer_;
  float probability_;
  PlannedTensor x_, y_, dy_, dx_;
};

}  // namespace

std::unique_ptr<Layer> make_dropout_layer(const FusedLayer& fused) {
  return std::make_unique<DropoutLayer>(static_cast<std::uint32_t>(fused.node->index),
                                        std::get<DropoutSpec>(fused.node->spec.options).probability);
}

}  // namespace annulus
