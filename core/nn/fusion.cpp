#include "core/nn/fusion.h"

namespace annulus {
namespace {

template <class Spec>
bool is(const LayerNode* node) {
  return std::holds_alternative<Spec>(node->spec.options);
}

bool is_affine(const LayerNode* node) { return is<Conv2dSpec>(node) || is<LinearSpec>(node); }

}  // namespace

std::vector<FusedLayer> fuse_layers(std::span<const LayerNode> layers) {
  std::vector<FusedLayer> fused;
  bool behind_relu = false;  // the last of `fused` ends with a ReLU
  for (const LayerNode& layer : layers) {
    const LayerNode* node = &layer;
    if (is<ReluSpec>(node) && !fused.empty() && !behind_relu && is_affine(fused.back().node)) {
      fused.back().relu = true;
      behind_relu = true;
      continue;
    }
    const bool masks_relu = behind_relu && (is<MaxPoolSpec>(node) || is_affine(node));
    if (masks_relu) fused.back().relu_masked_next = true;
    fused.push_back({.node = node, .masks_relu = masks_relu});
    behind_relu = is<ReluSpec>(node);
  }
  return fused;
}

}  // namespace annulus
