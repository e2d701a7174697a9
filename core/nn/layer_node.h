// LayerNode: a layer of a model whose input is known: its name, shapes and parameters.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/nn/model_spec.h"
#include "core/nn/parameter_arena.h"

namespace annulus {

struct LayerNode {
  LayerSpec spec;
  std::string name;       ///< as in PyTorch's state_dict: "4" or "4.main.0"
  std::size_t index = 0;  ///< in forward order, over all layers of the model; a residual follows its branches
  Shape input, output;    ///< of one sample: [height, width, channels] or [features]
  std::vector<LayerNode> main, shortcut;  ///< of a residual

  /// For messages: "4.main.0 conv2d(32,3)".
  std::string describe() const;

  /// Its own parameters and buffers (a residual has none), without their place in the arena.
  std::vector<ArenaSlice> slices() const;
};

/// Works out names and shapes. Throws ConfigError that names a layer whose input does not fit.
std::vector<LayerNode> resolve_layers(const std::vector<LayerSpec>& layers, InputShape input);

/// Visits every layer in the order in which backward finishes them: the last first, and of a residual the
/// main branch, the shortcut, then the residual itself.
template <class Visit>
void visit_backward(std::span<const LayerNode> layers, const Visit& visit) {
  for (std::size_t i = layers.size(); i-- > 0;) {
    visit_backward(layers[i].main, visit);
    visit_backward(layers[i].shortcut, visit);
    visit(layers[i]);
  }
}

/// A shape with the batch in front.
Shape with_batch(std::size_t batch, const Shape& sample);

}  // namespace annulus
