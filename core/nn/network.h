// Network: a model planned for one batch size: its kernels, and where its tensors lie in the workspace.
#pragma once

#include <cstddef>
#include <span>

#include "core/base/buffer.h"
#include "core/nn/layer_node.h"
#include "core/nn/sequence.h"
#include "core/nn/tiled_sequence.h"

namespace annulus {

/// Between the bytes of a micro-batch and the gradients of its parameters. Made by Model::network.
class Network {
 public:
  /// `workspace` is the model's, at least workspace_bytes() long when tensors are asked for.
  Network(std::span<const LayerNode> layers, InputShape input, std::size_t batch, const ParameterArena& arena,
          const Buffer& workspace);
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  std::size_t batch() const { return batch_; }
  std::size_t workspace_bytes() const { return plan_.bytes(); }

  /// [batch, height, width, channels] in the dtype of activations: what the first layer reads.
  Tensor input() const { return tensor(input_); }

  /// [batch, classes], of the same dtype: valid from forward to backward.
  Tensor logits() const { return tensor(logits_); }
  /// Gradient of the loss by the logits: what backward reads, and overwrites.
  Tensor logits_gradient() const { return tensor(logits_gradient_); }

  /// Workspace of the loss, or null where it needs none.
  void* loss_workspace() const { return tensor(loss_workspace_).data(); }

  /// A pass over this network; the caller sets gradients, training, dropout and observer.
  Pass pass(StreamView stream) const;

  void forward(const Pass& pass) {
    front_.forward(pass);
    back_.forward(pass);
  }
  void backward(const Pass& pass) {
    back_.backward(pass);
    front_.backward(pass);
  }

 private:
  Network(std::span<const LayerNode> layers, InputShape input, std::size_t batch, const ParameterArena& arena,
          const Buffer& workspace, Tiling tiling);

  Tensor tensor(const PlannedTensor& planned) const {
    return plan_.at(planned, workspace_.data(), arena_.device());
  }

  std::size_t batch_;
  const ParameterArena& arena_;
  const Buffer& workspace_;
  TiledSequence front_;
  Sequence back_;
  MemoryPlan plan_;
  PlannedTensor input_, logits_, loss_workspace_, logits_gradient_;
};

}  // namespace annulus
