// ParameterArena: all weights of a model in one contiguous buffer, all gradients in a second of the same
// layout, in the order in which a training step finishes them:
//
//   statistics | buffers of the last layer ... first layer | parameters of the last layer ... first layer
//
// Statistics are the loss's {loss sum, hits, samples}; buffers are BatchNorm's running moments, whose
// "gradients" are this step's moments times their sample count. Both are final when the forward pass ends,
// so a bucket of the gradient all-reduce is a contiguous range, and the optimizer updates one range too.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/gradient_synchronizer.h"
#include "core/base/precision.h"
#include "core/base/tensor.h"

namespace annulus {

/// Makes the memory of an arena: the default is a plain Buffer; pass a Communicator's allocate to have
/// gradients where they can be reduced without a copy.
using ArenaAllocator = std::function<Buffer(Device device, std::size_t bytes)>;

/// What an element starts as: uniform in [-uniform_bound, uniform_bound), or `constant` if the bound is 0.
struct InitialValue {
  float constant = 0;
  float uniform_bound = 0;
};

/// One named tensor of the model.
struct ArenaSlice {
  enum class Role { parameter, buffer };

  std::string name;  ///< as in PyTorch's state_dict, for instance "3.weight"
  Shape shape;
  Role role = Role::parameter;
  InitialValue initial = {};
  ElementRange range = {};  ///< its elements in the arena, without padding; set by ParameterArena
};

class ParameterArena {
 public:
  /// Elements of the statistics: loss sum, hits, samples.
  static constexpr std::size_t kStatistics = 3;

  /// Every slice starts at a multiple of this many elements (256 bytes).
  static constexpr std::size_t kAlignment = 64;

  /// Lays out `slices`, given in the order in which backward finishes them. Weights, gradients and padding
  /// start as zeros. Throws DeviceError; ConfigError if two slices have one name.
  ParameterArena(std::vector<ArenaSlice> slices, Device device, const ArenaAllocator& gradient_allocator = {},
                 Precision precision = Precision::f32);

  Device device() const { return weights_.device(); }
  Precision precision() const { return precision_; }

  /// Elements of the arena, padding included.
  std::size_t elements() const { return elements_; }

  /// Parameters only, without padding: the size of the model.
  std::size_t parameter_count() const;

  /// Buffers, then parameters, by ascending position.
  std::span<const ArenaSlice> slices() const { return slices_; }

  /// The slice of that name; throws ConfigError that suggests the nearest.
  const ArenaSlice& find(std::string_view name) const;

  ElementRange statistics() const { return {0, kStatistics}; }

  /// All buffers; all parameters; with the padding between and after them.
  ElementRange buffers() const { return {kAlignment, parameters_begin_}; }
  ElementRange parameters() const { return {parameters_begin_, elements_}; }

  /// The end of `range` with the padding after it.
  static std::size_t padded(std::size_t end) { return (end + kAlignment - 1) / kAlignment * kAlignment; }

  /// Views of f32. Without an argument, of the whole arena.
  Tensor weights() const { return weights(ElementRange{0, elements_}); }
  Tensor weights(const ArenaSlice& slice) const { return view(weights_, slice.range).reshaped(slice.shape); }
  Tensor weights(ElementRange range) const { return view(weights_, range); }
  Tensor gradients() const { return gradients(ElementRange{0, elements_}); }
  Tensor gradients(const ArenaSlice& slice) const {
    return view(gradients_, slice.range).reshaped(slice.shape);
  }
  Tensor gradients(ElementRange range) const { return view(gradients_, range); }

  /// The weights as matrix products and convolutions read them: with Precision::bf16, the weights rounded to
  /// bf16, which an optimizer keeps up to date; otherwise the weights themselves.
  Tensor compute_weights(const ArenaSlice& slice) const {
    return compute_weights(slice.range).reshaped(slice.shape);
  }
  Tensor compute_weights(ElementRange range) const;

  /// Says that weights were written by somebody else than initialise() and an optimizer.
  void weights_changed() { rounded_is_stale_ = true; }

  /// Brings compute_weights() up to date if need be. To be called before a pass.
  void refresh_compute_weights(StreamView stream);

  /// Sets every slice to its initial value. Element i of a slice depends on the seed, the slice's name and
  /// i only, so every rank draws the same weights.
  void initialise(std::uint64_t seed);

 private:
  Tensor view(const Buffer& buffer, ElementRange range) const;

  std::vector<ArenaSlice> slices_;
  std::size_t parameters_begin_ = kAlignment;
  std::size_t elements_ = 0;
  Precision precision_;
  Buffer weights_, gradients_;
  Buffer rounded_;  // the weights in bf16, only with Precision::bf16
  bool rounded_is_stale_ = true;
};

}  // namespace annulus
