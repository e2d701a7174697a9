// Finds out where a NaN or an infinity came from, after the loss of a step was not finite. Slow, and only
// then.
#pragma once

#include <cstddef>
#include <string>

#include "core/base/gradient_synchronizer.h"
#include "core/nn/layer.h"
#include "core/nn/layer_node.h"
#include "core/nn/model.h"

namespace annulus {

/// Follows the forward pass of the failed step once more (its weights have not changed), and keeps the first
/// layer that has a weight or gives a value that is not finite.
class NonFiniteSearch final : public PassObserver {
 public:
  NonFiniteSearch(Model& model, StreamView stream);

  /// Looks at what the first layer reads.
  void input_done(const Tensor& x);
  void forward_done(const LayerNode& layer, const Tensor& y) override;

  /// Joins the findings of all ranks, each of which has seen its own samples only, and says in words what
  /// the first of them is: the same on every rank. Overwrites the gradients.
  std::string join(GradientSynchronizer& synchronizer);

 private:
  void look(const Tensor& values, std::size_t finding);
  std::string text_of(std::size_t finding) const;

  Model& model_;
  StreamView stream_;
  std::size_t first_;  // the least finding so far: 0 is the input; then a layer's weights and its output, ...
};

}  // namespace annulus
