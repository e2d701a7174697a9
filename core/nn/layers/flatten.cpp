#include "core/nn/layers/make_layer.h"
#include "kernels/elementwise.h"

namespace annulus {
namespace {

/// [batch, height, width, channels] -> [batch, channels * height * width] in PyTorch's order, so that a
/// linear layer behind it has the same weights there. A view where the order is the same anyway.
class FlattenLayer final : public Layer {
 public:
  PlannedTensor plan_forward(MemoryPlan& plan, const PlannedTensor& x) override {
    x_ = x;
    plan.use(x_);
    const std::size_t batch = x.shape[0];
    const Shape flat{batch, x.shape.elements() / batch};
    if (is_view()) return x.reshaped(flat);
    return y_ = plan.add(flat, x.dtype);
  }

  PlannedTensor plan_backward(MemoryPlan& plan, const PlannedTensor& dy, bool) override {
    if (is_view()) return dy.reshaped(x_.shape);
    dy_ = dy;
    plan.use(dy_);
    return dx_ = plan.add(x_.shape, x_.dtype);
  }

  void forward(const Pass& pass) override {
    if (is_view()) return;
    kernels::transpose_inner(pass.stream, pass.tensor(x_).reshaped({batch(), pixels(), channels()}),
                             pass.tensor(y_).reshaped({batch(), channels(), pixels()}));
  }

  void backward(const Pass& pass) override {
    if (is_view()) return;
    kernels::transpose_inner(pass.stream, pass.tensor(dy_).reshaped({batch(), channels(), pixels()}),
                             pass.tensor(dx_).reshaped({batch(), pixels(), channels()}));
  }

 private:
  bool is_view() const { return x_.shape.rank() == 2 || channels() == 1 || pixels() == 1; }
  std::size_t batch() const { return x_.shape[0]; }
  std::size_t pixels() const { return x_.shape[1] * x_.shape[2]; }
  std::size_t channels() const { return x_.shape[3]; }

  PlannedTensor x_, y_, dy_, dx_;
};

}  // namespace

std::unique_ptr<Layer> make_flatten_layer() { return std::make_unique<FlattenLayer>(); }

}  // namespace annulus
