// Fusion: which layers of a sequence are computed together. A ReLU behind a convolution or a linear layer
// runs in that layer's epilogue. The gradient of a ReLU is taken by the layer behind it: by a convolution or
// a linear layer where it writes its input's gradient, and by max pooling, which visits one input in a window
// instead of all.
#pragma once

#include <span>
#include <vector>

#include "core/nn/layer_node.h"

namespace annulus {

struct FusedLayer {
  const LayerNode* node = nullptr;
  bool relu = false;              ///< convolution or linear: y = max(y, 0)
  bool relu_masked_next = false;  ///< convolution, linear or ReLU: dy arrives masked by the next layer
  bool masks_relu = false;        ///< its input is the output of a ReLU, whose gradient it takes

  friend bool operator==(const FusedLayer&, const FusedLayer&) = default;
};

std::vector<FusedLayer> fuse_layers(std::span<const LayerNode> layers);

}  // namespace annulus
