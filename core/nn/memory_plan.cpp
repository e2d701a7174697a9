#include "core/nn/memory_plan.h"

#include <algorithm>
#include <numeric>

namespace annulus {

PlannedTensor MemoryPlan::add(Shape shape, DType dtype) {
  blocks_.push_back(
      {.bytes = shape.elements() * size_of(dtype), .first = now_, .last = now_, .tiles = loop_tiles_});
  return {blocks_.size() - 1, shape, dtype};
}

void MemoryPlan::use(const PlannedTensor& tensor) {
  if (!tensor.empty()) blocks_[tensor.block].last = now_;
}

void MemoryPlan::begin_loop(std::size_t tiles) {
  loop_begin_ = now_;
  loop_tiles_ = tiles;
}

void MemoryPlan::end_loop() {
  if (now_ > loop_begin_) loops_.push_back({loop_begin_, now_ - 1});
  loop_tiles_ = 1;
}

void MemoryPlan::settle_loops() {
  for (Block& block : blocks_) {
    for (const Loop& loop : loops_) {
      if (block.last < loop.first || loop.last < block.first) continue;
      block.within_turn = loop.first <= block.first && block.last <= loop.last;
      if (block.within_turn) break;
      // What one turn leaves in it, the next turns must not touch.
      block.first = std::min(block.first, loop.first);
      block.last = std::max(block.last, loop.last);
    }
    constexpr std::size_t alignment = 256;
    const std::size_t bytes = block.bytes * (block.within_turn ? 1 : block.tiles);
    block.bytes = (bytes + alignment - 1) / alignment * alignment;
  }
}

void MemoryPlan::place() {
  settle_loops();
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

Tensor MemoryPlan::at(const PlannedTensor& tensor, void* workspace, Device device, std::size_t tile) const {
  if (tensor.empty()) return Tensor();
  const Block& block = blocks_[tensor.block];
  const std::size_t tile_bytes = tensor.shape.elements() * size_of(tensor.dtype);
  const std::size_t offset = block.offset + (block.within_turn ? 0 : tile * tile_bytes);
  return Tensor(static_cast<std::byte*>(workspace) + offset, tensor.shape, tensor.dtype, device);
}

}  // namespace annulus
