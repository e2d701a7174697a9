// Model: a spec, the shape of its input, and the arena that holds its parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/buffer.h"
#include "core/nn/model_spec.h"
#include "core/nn/parameter_arena.h"

namespace annulus {

class Network;
struct LayerNode;

class Model {
 public:
  /// Builds the model of `spec` (see model_spec.h) for images of shape `input` on `device`; parameters are
  /// zeros until initialise() or a checkpoint sets them. Throws ConfigError that names the layer whose input
  /// does not fit, or a precision that `device` has not; DeviceError if memory runs out.
  Model(std::string_view spec, InputShape input, Device device = Device::cpu(),
        const ArenaAllocator& gradient_allocator = {}, Precision precision = Precision::f32);
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  Precision precision() const { return arena_->precision(); }

  /// The canonical spec: what a checkpoint stores.
  const std::string& spec() const { return spec_; }
  InputShape input() const { return input_; }
  std::size_t classes() const { return classes_; }
  Device device() const { return arena_->device(); }

  ParameterArena& arena() { return *arena_; }
  const ParameterArena& arena() const { return *arena_; }

  /// PyTorch's default initialisation: weights and biases of convolutions and linear layers uniform in
  /// +-1/sqrt(fan-in), BatchNorm's scale 1 and shift 0. The same on every rank for one seed.
  void initialise(std::uint64_t seed) { arena_->initialise(seed); }

  /// The model planned for micro-batches of `batch` samples: planned at the first call, kept afterwards.
  /// All of them share one workspace, so a Network's tensors are valid until another one is used.
  Network& network(std::size_t batch);

  /// Ranges of the gradient arena in the order in which a step finishes them, without gaps: statistics and
  /// buffers, then the parameters of each layer.
  const std::vector<ElementRange>& gradient_ranges() const { return gradient_ranges_; }

  /// All layers, for messages.
  const std::vector<LayerNode>& layers() const { return layers_; }

  /// Bytes of activations, their gradients and everything else kept between layers, for the largest batch
  /// that has been planned.
  std::size_t workspace_bytes() const { return workspace_->bytes(); }

  /// Where all of that lies; moves when a larger batch is planned.
  const void* workspace() const { return workspace_->data(); }

 private:
  std::string spec_;
  InputShape input_;
  std::size_t classes_ = 0;
  std::vector<LayerNode> layers_;
  std::unique_ptr<ParameterArena> arena_;
  std::vector<ElementRange> gradient_ranges_;
  std::unique_ptr<Buffer> workspace_;                         // shared by all networks
  std::map<std::size_t, std::unique_ptr<Network>> networks_;  // by batch
};

}  // namespace annulus
