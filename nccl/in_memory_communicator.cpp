#include "nccl/in_memory_communicator.h"

#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <thread>

#include "nccl/host_communicator.h"

namespace annulus {
namespace {

std::shared_ptr<std::byte> allocate_pages(std::size_t bytes) {
  constexpr std::align_val_t alignment{SharedLayout::kPage};
  void* const memory = ::operator new(bytes, alignment);
  return {static_cast<std::byte*>(memory), [](std::byte* pages) { ::operator delete(pages, alignment); }};
}

// What the ranks of one group share.
struct Heap {
  std::shared_ptr<std::byte> base;
  std::mutex mutex;
  std::map<std::uint64_t, std::weak_ptr<std::byte>> pieces;  // by start; alive while a rank holds it
};

class HeapMemory final : public GroupMemory {
 public:
  HeapMemory(std::shared_ptr<Heap> heap, int world_size) : heap_(std::move(heap)), world_size_(world_size) {}

  std::byte* base() const override { return heap_->base.get(); }

  std::shared_ptr<std::byte> piece(std::uint64_t start, std::size_t part_bytes) override {
    const std::lock_guard lock(heap_->mutex);
    std::weak_ptr<std::byte>& known = heap_->pieces[start];
    std::shared_ptr<std::byte> piece = known.lock();
    if (piece == nullptr) {
      piece = allocate_pages(part_bytes * static_cast<std::size_t>(world_size_));
      known = piece;
    }
    return piece;
  }

  void discard_part(std::uint64_t, std::size_t) noexcept override {}
  bool alive(int) const override { return true; }

 private:
  std::shared_ptr<Heap> heap_;
  int world_size_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_in_memory_communicators(int world_size,
                                                                        std::chrono::milliseconds deadline) {
  require<ConfigError>(world_size >= 1, "a group needs at least 1 rank, not {}", world_size);
  const std::size_t bytes = SharedLayout{world_size}.bytes();
  const auto heap = std::make_shared<Heap>();
  heap->base = allocate_pages(bytes);
  std::memset(heap->base.get(), 0, bytes);

  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < world_size; ++rank) {
    communicators.push_back(std::make_unique<HostCommunicator>(std::make_unique<HeapMemory>(heap, world_size),
                                                               rank, world_size, deadline));
  }
  return communicators;
}

}  // namespace annulus
