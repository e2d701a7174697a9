// MemoryPlan: where every activation and gradient of a pass lies in one workspace. Tensors whose lifetimes
// do not overlap share memory, so gradients ping-pong between a few places, and an activation that backward
// does not read makes room as soon as the next layer has read it.
//
// Operations may run in a loop, once per tile of the batch. A tensor that lives within one turn of the loop
// has the memory of one tile, used again in every turn; any other holds all tiles, one behind the other.
#pragma once

#include <cstddef>
#include <vector>

#include "core/base/tensor.h"

namespace annulus {

/// A tensor of a MemoryPlan; it has an address once the workspace exists.
struct PlannedTensor {
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  std::size_t block = kNone;  ///< of the plan
  Shape shape;
  DType dtype = DType::f32;
  bool writable = true;  ///< the layer that reads it may overwrite it

  bool empty() const { return block == kNone; }

  /// The same memory under another shape.
  PlannedTensor reshaped(Shape other) const { return {block, other, dtype, writable}; }

  /// The same memory, to be left as it is.
  PlannedTensor read_only() const { return {block, shape, dtype, false}; }
};

/// Filled by a dry run of forward and backward in the order of execution, operation by operation.
class MemoryPlan {
 public:
  /// A new tensor that the current operation writes.
  PlannedTensor add(Shape shape, DType dtype = DType::f32);

  /// The current operation reads or writes `tensor`, so it lives until now at least. Empty ones are ignored.
  void use(const PlannedTensor& tensor);

  /// Everything after this belongs to the next operation.
  void next_operation() { ++now_; }

  /// The operations up to end_loop() run `tiles` times. Tensors that they add or use have the shape of a
  /// tile; outside of the loop the same block is all tiles (see PlannedTensor::reshaped).
  void begin_loop(std::size_t tiles);
  void end_loop();

  /// Ends the dry run and gives every tensor its place, 256-byte aligned: largest first, at the lowest
  /// offset that is free throughout its life.
  void place();

  /// Size of the workspace.
  std::size_t bytes() const { return bytes_; }

  /// The tensor in a workspace that starts at `workspace`, in the given turn of a loop. Only after place().
  Tensor at(const PlannedTensor& tensor, void* workspace, Device device, std::size_t tile = 0) const;

 private:
  struct Block {
    std::size_t bytes = 0, first = 0, last = 0;  // operations that touch it, both included
    std::size_t tiles = 1;                       // of its memory, if it outlives a turn of the loop
    bool within_turn = false;                    // of a loop
    std::size_t offset = 0;
  };
  struct Loop {
    std::size_t first = 0, last = 0;  // operations, both included
  };

  void settle_loops();

  std::vector<Block> blocks_;
  std::vector<Loop> loops_;
  std::size_t loop_begin_ = 0, loop_tiles_ = 1;  // of the loop being recorded; 1 tile outside of loops
  std::size_t now_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace annulus
