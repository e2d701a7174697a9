#include "nccl/bucketed_reducer.h"

#include <algorithm>

namespace annulus {

BucketedReducer::BucketedReducer(Communicator& communicator, Tensor gradients, std::size_t bucket_bytes)
    : communicator_(communicator), gradients_(gradients) {
  constexpr std::size_t kAlignment =
      256 / sizeof(float);  // elements; slices of the arena are aligned like this
  const auto elements_of = [](std::size_t bytes) {
    return std::max(bytes / sizeof(float) / kAlignment, std::size_t{1}) * kAlignment;
  };
  const std::size_t elements = gradients.as<float>() == nullptr ? 0 : gradients.elements();
  std::size_t limit = elements_of(std::min(kFirstBucketBytes, bucket_bytes));
  for (std::size_t begin = 0; begin < elements; begin = buckets_.back().end) {
    buckets_.push_back({begin, begin + std::min(limit, elements - begin)});
    limit = elements_of(bucket_bytes);
  }
}

void BucketedReducer::add(ElementRange range, StreamView compute) {
  require<ShapeError>(
      range.begin == announced_ && range.end >= range.begin && range.end <= gradients_.elements(),
      "gradients [{}, {}) were announced where those from {} on, of {}, were due", range.begin, range.end,
      announced_, gradients_.elements());
  announced_ = range.end;
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].end <= announced_) {
    const ElementRange bucket = buckets_[next_bucket_++];
    communicator_.all_reduce_sum(gradients_.as<float>() + bucket.begin, bucket.size(), DType::f32, compute);
  }
}

void BucketedReducer::finalize(StreamView compute) {
  require<ShapeError>(announced_ == gradients_.elements(), "only {} of {} gradients were announced",
                      announced_, gradients_.elements());
  announced_ = 0;
  next_bucket_ = 0;
  communicator_.wait(compute);
}

}  // namespace annulus
