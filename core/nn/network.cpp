#include "core/nn/network.h"

namespace annulus {

Network::Network(std::span<const LayerNode> layers, InputShape input, std::size_t batch,
                 const ParameterArena& arena, const Buffer& workspace)
    : batch_(batch), arena_(arena), workspace_(workspace), layers_(layers, batch, arena) {
  const Shape image{batch, input.height, input.width, input.channels};
  if (arena.device().is_cuda()) {
    images_ = plan_.add(image, DType::u8);
    labels_ = plan_.add({batch}, DType::i32);
    sample_index_ = plan_.add({batch}, DType::i64);
  }
  input_ = plan_.add(image);
  plan_.next_operation();
  logits_ = layers_.plan_forward(plan_, input_);
  plan_.use(logits_);
  plan_.use(labels_);
  logits_gradient_ = plan_.add(logits_.shape);
  plan_.next_operation();
  layers_.plan_backward(plan_, logits_gradient_, false);
  plan_.place();
}

Pass Network::pass(StreamView stream) const {
  return {.stream = stream, .arena = arena_, .memory = plan_, .workspace = workspace_.data()};
}

}  // namespace annulus
