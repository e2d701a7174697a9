#include "core/nn/memory_plan.h"

#include <algorithm>
#include <numeric>

namespace annulus {

PlannedTensor MemoryPlan::add(Shape shape, DType dtype) {
  constexpr std::size_t alignment = 256;
  const std::size_t bytes = shape.elements() * size_of(dtype);
  blocks_.push_back({.bytes = (bytes + alignment - 1) / alignment * alignment, .first = now_, .last = now_});
  return {blocks_.size() - 1, shape, dtype};
}

void MemoryPlan::use(const PlannedTensor& tensor) {
  if (!tensor.empty()) blocks_[tensor.block].last = now_;
}

void MemoryPlan::place() {
  std::vector<std::size_t> order(blocks_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return blocks_[a].bytes > blocks_[b].bytes; });

  std::vector<const Block*> placed;  // by ascending offset
  for (const std::size_t index : order) {
    Block& block = blocks_[index];
    std::size_t offset = 0;
    for (const Block* other : placed) {
      const bool together = other->first <= block.last && block.first <= other->last;
      if (!together) continue;
      if (offset + block.bytes <= other->offset) break;  // fits into the gap before it
      offset = std::max(offset, other->offset + other->bytes);
    }
    block.offset = offset;
    bytes_ = std::max(bytes_, offset + block.bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), offset,
                                   [](std::size_t at, const Block* other) { return at < other->offset; }),
                  &block);
  }
}

Tensor MemoryPlan::at(const PlannedTensor& tensor, void* workspace, Device device) const {
  if (tensor.empty()) return Tensor();
  return Tensor(static_cast<std::byte*>(workspace) + blocks_[tensor.block].offset, tensor.shape, tensor.dtype,
                device);
}

}  // namespace annulus
