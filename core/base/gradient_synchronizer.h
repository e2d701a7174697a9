// How the training step sees data parallelism: gradients are announced range by range while backward
// runs, and summed over all ranks by the end of it. Two verbs, add and finalize.
#pragma once

#include <cstddef>

#include "core/base/stream.h"

namespace annulus {

/// Elements [begin, end) of the gradient arena. Counts elements, never bytes.
struct ElementRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
};

/// Sums the gradient arena over all ranks, in place. Bound to one arena (f32) when it is made.
class GradientSynchronizer {
 public:
  virtual ~GradientSynchronizer() = default;

  /// Says that this rank's values of `range` are final once the work submitted to `compute` so far is
  /// done. Ranges of one step are announced in ascending order, without gaps or overlap, and identically
  /// on every rank.
  virtual void add(ElementRange range, StreamView compute) = 0;

  /// Work submitted to `compute` after this call sees the sums of the whole arena. Ends the step. Throws
  /// CommunicationError that names the rank if a peer died or hung.
  virtual void finalize(StreamView compute) = 0;

  /// True if there is nobody to exchange gradients with: both calls then submit no work.
  virtual bool is_identity() const { return false; }
};

/// World size 1: the local gradients are the sums already.
class IdentitySynchronizer final : public GradientSynchronizer {
 public:
  void add(ElementRange, StreamView) override {}
  void finalize(StreamView) override {}
  bool is_identity() const override { return true; }
};

}  // namespace annulus
