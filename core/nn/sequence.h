// Sequence: layers one after another, planned for one batch size; the whole model or a branch of a residual.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/nn/layer.h"
#include "core/nn/layer_node.h"

namespace annulus {

/// Its own observer calls tell of each layer: forward_done after every one, backward_done after every one
/// with parameters.
class Sequence final : public Layer {
 public:
  /// `layers` and `arena` must outlive it.
  Sequence(std::span<const LayerNode> layers, std::size_t batch, const ParameterArena& arena);

  PlannedTensor plan_forward(MemoryPlan& plan, const PlannedTensor& x) override;
  PlannedTensor plan_backward(MemoryPlan& plan, const PlannedTensor& dy, bool input_gradient) override;
  void forward(const Pass& pass) override;
  void backward(const Pass& pass) override;

 private:
  struct Step {
    const LayerNode* node = nullptr;
    std::unique_ptr<Layer> layer;
    ElementRange gradients;       // of its own parameters, with padding; empty if it has none
    bool has_parameters = false;  // itself or within
    PlannedTensor y;
  };

  std::vector<Step> steps_;
  std::size_t first_backward_ = 0;  // layers before it need no gradient at all
};

/// The elements of a layer's own parameters, padding included; empty if it has none.
ElementRange parameter_range(const LayerNode& layer, const ParameterArena& arena);

}  // namespace annulus
