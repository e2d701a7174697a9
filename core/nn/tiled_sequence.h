// TiledSequence: the layers in front of a model, where activations are large, run on one tile of the batch
// after the other, so that a layer finds in the cache what the layer before it has written. What backward
// does not read (the input of a pooling, say) needs memory for one tile only.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/nn/sequence.h"

namespace annulus {

/// Which layers run in tiles: those whose samples have nothing to do with each other, from the first on.
struct Tiling {
  std::size_t layers = 0;  ///< 0: none
  std::size_t tiles = 1;   ///< of the batch, all of one size
};

/// Depends on the model, the batch size and the type of device only, because it decides in what order
/// gradients are summed.
Tiling choose_tiling(std::span<const LayerNode> layers, std::size_t batch, Device device);

/// Gradients of the tiles are added up tile by tile, and announced when the last one is in.
class TiledSequence final : public Layer {
 public:
  /// `layers` (no residuals; none at all is the identity) and `arena` must outlive it.
  TiledSequence(std::span<const LayerNode> layers, std::size_t batch, std::size_t tiles,
                const ParameterArena& arena);

  PlannedTensor plan_forward(MemoryPlan& plan, const PlannedTensor& x) override;
  PlannedTensor plan_backward(MemoryPlan& plan, const PlannedTensor& dy, bool input_gradient) override;
  void forward(const Pass& pass) override;
  void backward(const Pass& pass) override;

 private:
  Pass tile_pass(const Pass& pass, std::size_t tile) const;

  std::size_t tile_batch_, tiles_;
  Sequence layers_;
  std::vector<const ArenaSlice*> parameters_;
  std::vector<ElementRange> gradients_;  // of each layer, in the order of backward
  PlannedTensor tile_gradients_;         // of all layers
};

}  // namespace annulus
