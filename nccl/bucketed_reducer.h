// Gradient synchronisation in buckets: contiguous pieces of the gradient arena, reduced in place.
#pragma once

#include <cstddef>
#include <vector>

#include "core/base/gradient_synchronizer.h"
#include "core/base/tensor.h"
#include "nccl/communicator.h"

namespace annulus {

/// Sums the gradient arena over all ranks, bucket by bucket: a bucket is all-reduced once every range in it
/// has been announced. The first bucket is at most 1 MiB, so that communication can start early, and the
/// others `bucket_bytes`. The sums have the same bits for any bucket size.
class BucketedReducer final : public GradientSynchronizer {
 public:
  /// PyTorch's choice, so that figures compare.
  static constexpr std::size_t kDefaultBucketBytes = std::size_t{25} << 20;
  static constexpr std::size_t kFirstBucketBytes = std::size_t{1} << 20;

  /// `gradients` is f32; memory from Communicator::allocate() is reduced without a copy. Both outlive this.
  BucketedReducer(Communicator& communicator, Tensor gradients,
                  std::size_t bucket_bytes = kDefaultBucketBytes);

  /// Throws ShapeError if `range` does not begin where the announced ones end.
  void add(ElementRange range, StreamView compute) override;

  /// Throws ShapeError if a part of the arena was never announced.
  void finalize(StreamView compute) override;
  bool is_identity() const override { return communicator_.world_size() == 1; }

  /// The buckets, in order; together they cover the arena.
  const std::vector<ElementRange>& buckets() const { return buckets_; }

 private:
  Communicator& communicator_;
  Tensor gradients_;
  std::vector<ElementRange> buckets_;
  std::size_t announced_ = 0;    // elements announced in this step
  std::size_t next_bucket_ = 0;  // first bucket of this step that is not reduced yet
};

}  // namespace annulus
