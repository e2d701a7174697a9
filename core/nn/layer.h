// Layer: one step of a model, planned for one batch size. Planning is a dry run: a layer asks for the
// tensors it will write and declares those it will read, forward and then backward, so that the plan knows
// how long each of them lives and can lay them over each other (memory_plan.h).
#pragma once

#include "core/base/gradient_synchronizer.h"
#include "core/base/stream.h"
#include "core/base/tensor.h"
#include "core/nn/memory_plan.h"
#include "core/nn/parameter_arena.h"
#include "kernels/dropout.h"

namespace annulus {

struct LayerNode;

/// Follows a pass through the layers.
class PassObserver {
 public:
  virtual ~PassObserver() = default;

  /// `y` is what the layer, with a ReLU that is fused into it, has just computed.
  virtual void forward_done(const LayerNode&, const Tensor& /*y*/) {}

  /// The gradients of these elements of the arena are final; ranges ascend without gaps.
  virtual void backward_done(ElementRange) {}
};

/// Everything about the pass under way that a layer needs at run time.
struct Pass {
  StreamView stream;
  const ParameterArena& arena;
  const MemoryPlan& memory;
  void* workspace = nullptr;         ///< of `memory`
  std::size_t tile = 0;              ///< of the batch, in a loop of `memory`
  float* gradients = nullptr;        ///< elements as in the arena; a layer overwrites its own slices
  std::size_t first_gradient = 0;    ///< which element of the arena gradients[0] is
  bool training = false;             ///< batch moments and dropout, or running moments and none
  kernels::DropoutKey dropout = {};  ///< a layer sets `layer`
  PassObserver* observer = nullptr;

  Tensor tensor(const PlannedTensor& planned) const {
    return memory.at(planned, workspace, stream.device(), tile);
  }
  /// f32: for layers that read them channel by channel.
  Tensor weights(const ArenaSlice& slice) const { return arena.weights(slice); }
  /// In the precision of the model: for matrix products and convolutions.
  Tensor compute_weights(const ArenaSlice& slice) const { return arena.compute_weights(slice); }
  Tensor gradient(const ArenaSlice& slice) const {
    return Tensor(gradients + (slice.range.begin - first_gradient), slice.shape, DType::f32, stream.device());
  }
};

class Layer {
 public:
  virtual ~Layer() = default;

  /// Dry run of forward: returns y. May return x itself, overwritten, if x.writable.
  virtual PlannedTensor plan_forward(MemoryPlan& plan, const PlannedTensor& x) = 0;

  /// Dry run of backward: returns dx, or nothing (an empty tensor) if `input_gradient` is false. May return
  /// dy itself, overwritten, if dy.writable.
  virtual PlannedTensor plan_backward(MemoryPlan& plan, const PlannedTensor& dy, bool input_gradient) = 0;

  virtual void forward(const Pass& pass) = 0;
  virtual void backward(const Pass& pass) = 0;
};

}  // namespace annulus
