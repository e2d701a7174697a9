#include "core/nn/layers/make_layer.h"
#include "core/nn/sequence.h"
#include "kernels/elementwise.h"

namespace annulus {
namespace {

/// y = main(x) + shortcut(x). Both branches read x and dy, so neither may overwrite what the other reads.
class ResidualLayer final : public Layer {
 public:
  ResidualLayer(const LayerNode& node, std::size_t batch, const ParameterArena& arena)
      : main_(node.main, batch, arena), shortcut_(node.shortcut, batch, arena) {}

  PlannedTensor plan_forward(MemoryPlan& plan, const PlannedTensor& x) override {
    main_y_ = main_.plan_forward(plan, x.read_only());
    shortcut_y_ = shortcut_.plan_forward(plan, x.read_only());
    plan.use(main_y_);
    plan.use(shortcut_y_);
    return y_ = plan.add(main_y_.shape, main_y_.dtype);
  }

  PlannedTensor plan_backward(MemoryPlan& plan, const PlannedTensor& dy, bool input_gradient) override {
    main_dx_ = main_.plan_backward(plan, dy.read_only(), input_gradient);
    // The main branch may have passed dy on as it is; then it is needed until the sum.
    plan.use(main_dx_);
    const bool dy_is_free = dy.block != main_dx_.block;
    shortcut_dx_ = shortcut_.plan_backward(plan, dy_is_free ? dy : dy.read_only(), input_gradient);
    if (!input_gradient) return {};
    plan.use(main_dx_);
    plan.use(shortcut_dx_);
    if (main_dx_.writable) return dx_ = main_dx_;
    if (shortcut_dx_.writable) return dx_ = shortcut_dx_;
    return dx_ = plan.add(main_dx_.shape, main_dx_.dtype);
  }

  void forward(const Pass& pass) override {
    main_.forward(pass);
    shortcut_.forward(pass);
    kernels::add(pass.stream, pass.tensor(main_y_), pass.tensor(shortcut_y_), pass.tensor(y_));
  }

  void backward(const Pass& pass) override {
    main_.backward(pass);
    shortcut_.backward(pass);
    if (!dx_.empty())
      kernels::add(pass.stream, pass.tensor(main_dx_), pass.tensor(shortcut_dx_), pass.tensor(dx_));
  }

 private:
  Sequence main_, shortcut_;  // an empty sequence is the identity
  PlannedTensor main_y_, shortcut_y_, y_, main_dx_, shortcut_dx_, dx_;
};

}  // namespace

std::unique_ptr<Layer> make_residual_layer(const FusedLayer& fused, std::size_t batch,
                                           const ParameterArena& arena) {
  return std::make_unique<ResidualLayer>(*fused.node, batch, arena);
}

}  // namespace annulus
