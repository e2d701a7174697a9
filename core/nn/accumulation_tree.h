// AccumulationTree: sums the gradients of a rank's micro-batches in a binary counter: when micro-batch i is
// done, the sums of equally many micro-batches before it are merged, as bits carry when 1 is added to i.
// So adjacent aligned pairs are added first, and a power of two of micro-batches forms a full binary tree,
// which the ordered all-reduce continues over the ranks. An incomplete tree is closed by the last
// micro-batch, smallest sums first: of six, ((0+1)+(2+3)) + (4+5).
#pragma once

#include <cstddef>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/gradient_synchronizer.h"
#include "core/base/stream.h"
#include "core/nn/parameter_arena.h"

namespace annulus {

class AccumulationTree {
 public:
  /// The arena must outlive the tree. The sum ends in its gradients.
  explicit AccumulationTree(ParameterArena& arena) : arena_(arena) {}

  /// Starts a sum of `micro_batches` gradients; keeps the memory of the largest number so far: one arena for
  /// every bit of micro_batches - 1.
  void start(StreamView stream, std::size_t micro_batches);

  /// Where micro-batch i (in ascending order) writes its gradients: an arena's worth of elements.
  float* target(std::size_t i) const;

  /// Carries the elements of `range` through the tree once micro-batch i has written them. Every element
  /// must be carried exactly once per micro-batch.
  void carry(StreamView stream, std::size_t i, ElementRange range) const;

 private:
  bool is_last(std::size_t i) const { return i + 1 == micro_batches_; }
  Tensor view(float* arena, ElementRange range) const;

  ParameterArena& arena_;
  std::size_t micro_batches_ = 0;
  std::vector<Buffer> levels_;  // level j: a sum of 2^j micro-batches
};

}  // namespace annulus
