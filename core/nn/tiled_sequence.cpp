#include "core/nn/tiled_sequence.h"

#include <algorithm>

#include "kernels/elementwise.h"

namespace annulus {
namespace {

bool fits_tiles(const LayerNode& layer) {
  const auto& options = layer.spec.options;
  return std::holds_alternative<Conv2dSpec>(options) || std::holds_alternative<ReluSpec>(options) ||
         std::holds_alternative<MaxPoolSpec>(options) || std::holds_alternative<DropoutSpec>(options);
}

/// The same memory with another number of samples.
PlannedTensor with_samples(const PlannedTensor& tensor, std::size_t samples) {
  std::array<std::size_t, Shape::kMaxRank> extents{};
  std::copy(tensor.shape.begin(), tensor.shape.end(), extents.begin());
  extents[0] = samples;
  return tensor.reshaped(Shape(extents.data(), tensor.shape.rank()));
}

}  // namespace

Tiling choose_tiling(std::span<const LayerNode> layers, std::size_t batch, Device device) {
  // Half of a second-level cache of 2 MiB. Below 8 samples, the work per call of a kernel (reordering the
  // weights, for one) weighs more than what the cache saves.
  constexpr std::size_t cache_bytes = std::size_t{1} << 20;
  constexpr std::size_t fewest_samples = 8;
  const auto end = std::find_if_not(layers.begin(), layers.end(), fits_tiles);
  std::size_t sample_bytes = 0, convolutions = 0;
  for (auto layer = layers.begin(); layer != end; ++layer) {
    sample_bytes = std::max(sample_bytes, layer->output.elements() * sizeof(float));
    convolutions += std::holds_alternative<Conv2dSpec>(layer->spec.options) ? 1 : 0;
  }
  if (convolutions == 0 || !device.is_cpu()) return {};
  std::size_t samples = std::max(fewest_samples, cache_bytes / sample_bytes);
  if (batch <= samples) return {};
  while (batch % samples != 0) --samples;
  if (samples < fewest_samples / 2) return {};
  return {static_cast<std::size_t>(end - layers.begin()), batch / samples};
}

TiledSequence::TiledSequence(std::span<const LayerNode> layers, std::size_t batch, std::size_t tiles,
                             const ParameterArena& arena)
    : tile_batch_(batch / tiles), tiles_(tiles), layers_(layers, tile_batch_, arena) {
  visit_backward(layers, [&](const LayerNode& layer) {
    for (const ArenaSlice& slice : layer.slices()) parameters_.push_back(&arena.find(slice.name));
    const ElementRange range = parameter_range(layer, arena);
    if (range.size() > 0) gradients_.push_back(range);
  });
}

PlannedTensor TiledSequence::plan_forward(MemoryPlan& plan, const PlannedTensor& x) {
  plan.begin_loop(tiles_);
  const PlannedTensor y = layers_.plan_forward(plan, with_samples(x, tile_batch_));
  plan.end_loop();
  return with_samples(y, tile_batch_ * tiles_);
}

PlannedTensor TiledSequence::plan_backward(MemoryPlan& plan, const PlannedTensor& dy, bool input_gradient) {
  plan.begin_loop(tiles_);
  if (!gradients_.empty()) tile_gradients_ = plan.add({gradients_.back().end - gradients_.front().begin});
  const PlannedTensor dx = layers_.plan_backward(plan, with_samples(dy, tile_batch_), input_gradient);
  plan.use(tile_gradients_);
  plan.next_operation();
  plan.end_loop();
  return dx.empty() ? dx : with_samples(dx, tile_batch_ * tiles_);
}

void TiledSequence::forward(const Pass& pass) {
  for (std::size_t tile = 0; tile < tiles_; ++tile) layers_.forward(tile_pass(pass, tile));
}

void TiledSequence::backward(const Pass& pass) {
  for (std::size_t tile = 0; tile < tiles_; ++tile) {
    Pass part = tile_pass(pass, tile);
    part.observer = nullptr;
    if (tile > 0 && !gradients_.empty()) {
      part.gradients = part.tensor(tile_gradients_).as<float>();
      part.first_gradient = gradients_.front().begin;
    }
    layers_.backward(part);
    if (tile > 0)
      for (const ArenaSlice* slice : parameters_)
        kernels::add(pass.stream, pass.gradient(*slice), part.gradient(*slice), pass.gradient(*slice));
  }
  if (pass.observer != nullptr)
    for (const ElementRange range : gradients_) pass.observer->backward_done(range);
}

Pass TiledSequence::tile_pass(const Pass& pass, std::size_t tile) const {
  Pass part = pass;
  part.tile = tile;
  part.dropout.first_sample += tile * tile_batch_;
  return part;
}

}  // namespace annulus
