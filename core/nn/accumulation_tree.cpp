#include "core/nn/accumulation_tree.h"

#include <bit>

#include "kernels/elementwise.h"

namespace annulus {
namespace {

float* elements_of(const Buffer& buffer) { return static_cast<float*>(buffer.data()); }

}  // namespace

void AccumulationTree::start(StreamView stream, std::size_t micro_batches) {
  micro_batches_ = micro_batches;
  const auto levels = static_cast<std::size_t>(std::bit_width(micro_batches - 1));
  while (levels_.size() < levels) {
    levels_.emplace_back(arena_.device(), arena_.elements() * sizeof(float));
    zero_bytes(stream, levels_.back().data(), levels_.back().bytes());  // the padding is summed too
  }
}

float* AccumulationTree::target(std::size_t i) const {
  // An even micro-batch that is not the last waits in level 0 as it is.
  const bool waits = i % 2 == 0 && !is_last(i);
  return waits ? elements_of(levels_[0]) : arena_.gradients().as<float>();
}

void AccumulationTree::carry(StreamView stream, std::size_t i, ElementRange range) const {
  const auto carried = static_cast<std::size_t>(std::countr_one(i));  // levels that i's carry empties
  const std::size_t merged = is_last(i) ? i : i & ((std::size_t{1} << carried) - 1);
  const Tensor sum = arena_.gradients(range);
  for (std::size_t level = 0; (merged >> level) != 0; ++level) {
    if (((merged >> level) & 1) == 0) continue;
    const bool waits = !is_last(i) && level + 1 == carried;
    kernels::add(stream, view(elements_of(levels_[level]), range), sum,
                 waits ? view(elements_of(levels_[carried]), range) : sum);
  }
}

Tensor AccumulationTree::view(float* arena, ElementRange range) const {
  return Tensor(arena + range.begin, {range.size()}, DType::f32, arena_.device());
}

}  // namespace annulus
