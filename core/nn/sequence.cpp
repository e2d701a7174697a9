#include "core/nn/sequence.h"

#include <algorithm>

#include "core/nn/fusion.h"
#include "core/nn/layers/make_layer.h"

namespace annulus {
namespace {

bool has_parameters(const LayerNode& node) {
  return !node.slices().empty() || std::any_of(node.main.begin(), node.main.end(), has_parameters) ||
         std::any_of(node.shortcut.begin(), node.shortcut.end(), has_parameters);
}

}  // namespace

ElementRange parameter_range(const LayerNode& layer, const ParameterArena& arena) {
  ElementRange range;
  for (const ArenaSlice& own : layer.slices()) {
    if (own.role != ArenaSlice::Role::parameter) continue;
    const ArenaSlice& placed = arena.find(own.name);
    if (range.size() == 0) range.begin = placed.range.begin;
    range.end = ParameterArena::padded(placed.range.end);
  }
  return range;
}

Sequence::Sequence(std::span<const LayerNode> layers, std::size_t batch, const ParameterArena& arena) {
  for (const FusedLayer& fused : fuse_layers(layers)) {
    Step step;
    step.node = fused.node;
    step.layer = make_layer(fused, batch, arena);
    step.gradients = parameter_range(*fused.node, arena);
    step.has_parameters = has_parameters(*fused.node);
    steps_.push_back(std::move(step));
  }
}

PlannedTensor Sequence::plan_forward(MemoryPlan& plan, const PlannedTensor& x) {
  PlannedTensor y = x;
  for (Step& step : steps_) {
    y = step.y = step.layer->plan_forward(plan, y);
    plan.next_operation();
  }
  return y;
}

PlannedTensor Sequence::plan_backward(MemoryPlan& plan, const PlannedTensor& dy, bool input_gradient) {
  const auto first_with_parameters =
      std::find_if(steps_.begin(), steps_.end(), [](const Step& step) { return step.has_parameters; });
  first_backward_ = input_gradient ? 0 : static_cast<std::size_t>(first_with_parameters - steps_.begin());
  PlannedTensor gradient = dy;
  for (std::size_t i = steps_.size(); i-- > first_backward_;) {
    gradient = steps_[i].layer->plan_backward(plan, gradient, input_gradient || i > first_backward_);
    plan.next_operation();
  }
  return input_gradient ? gradient : PlannedTensor();
}

void Sequence::forward(const Pass& pass) {
  for (const Step& step : steps_) {
    step.layer->forward(pass);
    if (pass.observer != nullptr) pass.observer->forward_done(*step.node, pass.tensor(step.y));
  }
}

void Sequence::backward(const Pass& pass) {
  for (std::size_t i = steps_.size(); i-- > first_backward_;) {
    steps_[i].layer->backward(pass);
    if (pass.observer != nullptr && steps_[i].gradients.size() > 0)
      pass.observer->backward_done(steps_[i].gradients);
  }
}

}  // namespace annulus
