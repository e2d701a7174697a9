#include "core/nn/network.h"

#include "kernels/softmax_cross_entropy.h"

namespace annulus {

Network::Network(std::span<const LayerNode> layers, InputShape input, std::size_t batch,
                 const ParameterArena& arena, const Buffer& workspace)
    : Network(layers, input, batch, arena, workspace, choose_tiling(layers, batch, arena.device())) {}

Network::Network(std::span<const LayerNode> layers, InputShape input, std::size_t batch,
                 const ParameterArena& arena, const Buffer& workspace, Tiling tiling)
    : batch_(batch),
      arena_(arena),
      workspace_(workspace),
      front_(layers.first(tiling.layers), batch, tiling.tiles, arena),
      back_(layers.subspan(tiling.layers), batch, arena) {
  input_ = plan_.add({batch, input.height, input.width, input.channels}, activation_dtype(arena.precision()));
  plan_.next_operation();
  logits_ = back_.plan_forward(plan_, front_.plan_forward(plan_, input_));
  plan_.use(logits_);
  const std::size_t loss_bytes = kernels::softmax_cross_entropy_workspace_bytes(arena.device(), batch);
  if (loss_bytes > 0) loss_workspace_ = plan_.add({loss_bytes}, DType::u8);
  logits_gradient_ = plan_.add(logits_.shape, logits_.dtype);
  plan_.next_operation();
  const bool front_learns = tiling.layers > 0;
  front_.plan_backward(plan_, back_.plan_backward(plan_, logits_gradient_, front_learns), false);
  plan_.place();
}

Pass Network::pass(StreamView stream) const {
  return {.stream = stream, .arena = arena_, .memory = plan_, .workspace = workspace_.data()};
}

}  // namespace annulus
