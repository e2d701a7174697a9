#include "nccl/host_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "nccl/ordered_sum.h"

namespace annulus {
namespace {

constexpr std::size_t kLine = 64;                         // bytes of a cache line
constexpr std::size_t kHostBytes = std::size_t{4} << 20;  // of device data moved at a time

const std::byte* as_bytes(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* as_bytes(void* data) { return static_cast<std::byte*>(data); }

void copy_host(void* destination, const void* source, std::size_t bytes) {
  if (bytes > 0 && destination != source) std::memcpy(destination, source, bytes);
}

// Calls piece(begin, size) for consecutive pieces of at most `limit` elements, at least once.
template <class Function>
void for_each_piece(std::size_t count, std::size_t limit, Function&& piece) {
  std::size_t begin = 0;
  do {
    const std::size_t size = std::min(limit, count - begin);
    piece(begin, size);
    begin += size;
  } while (begin < count);
}

}  // namespace

HostCommunicator::HostCommunicator(std::unique_ptr<GroupMemory> memory, int rank, int world_size,
                                   std::chrono::milliseconds deadline)
    : pieces_(std::make_shared<Pieces>()),
      group_(*memory, rank, world_size, deadline),
      rank_(rank),
      world_size_(world_size),
      next_piece_(SharedLayout{world_size}.bytes()),
      slices_(static_cast<std::size_t>(world_size)) {
  pieces_->memory = std::move(memory);
}

HostCommunicator::~HostCommunicator() { group_.leave(); }

void HostCommunicator::join(const std::function<void()>& pause,
                            const std::function<void(std::string_view)>& progress) {
  group_.join(pause, progress);
}

Buffer HostCommunicator::allocate(Device device, std::size_t bytes) {
  group_.begin({.kind = CollectiveKind::allocate, .count = bytes});
  if (!device.is_cpu() || bytes == 0) return Buffer(device, bytes);
  Piece piece{{}, next_piece_, SharedLayout::round_up(bytes, SharedLayout::kPage)};
  piece.memory = pieces_->memory->piece(piece.start, piece.part_bytes);
  next_piece_ += piece.part_bytes * static_cast<std::size_t>(world_size_);
  pieces_->list.push_back(piece);
  std::byte* const own = piece.memory.get() + static_cast<std::size_t>(rank_) * piece.part_bytes;
  return Buffer(device, own, bytes, [pieces = pieces_, start = piece.start] {
    const auto freed = std::find_if(pieces->list.begin(), pieces->list.end(),
                                    [start](const Piece& candidate) { return candidate.start == start; });
    pieces->memory->discard_part(freed->start, freed->part_bytes);
    pieces->list.erase(freed);
  });
}

HostCommunicator::Parts HostCommunicator::find(const void* data, std::size_t bytes) const {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  for (const Piece& piece : pieces_->list) {
    const auto part = reinterpret_cast<std::uintptr_t>(piece.memory.get()) +
                      static_cast<std::size_t>(rank_) * piece.part_bytes;
    if (address < part || address + bytes > part + piece.part_bytes) continue;
    const std::size_t offset = address - part;
    return {piece.memory.get() + offset, piece.part_bytes, piece.start + offset};
  }
  return {};
}

HostCommunicator::Parts HostCommunicator::staging() const {
  const SharedLayout layout{world_size_};
  return {pieces_->memory->base() + layout.staging(0, half_), layout.staging(1, 0) - layout.staging(0, 0)};
}

// The part of `bytes` that a rank sums: whole cache lines, so that no line is written by two ranks.
HostCommunicator::Slice HostCommunicator::slice_of(int rank, std::size_t bytes) const {
  const std::size_t lines = (bytes + kLine - 1) / kLine;
  const auto cut = [&](int at) {
    return std::min(bytes,
                    lines * static_cast<std::size_t>(at) / static_cast<std::size_t>(world_size_) * kLine);
  };
  return {cut(rank), cut(rank + 1) - cut(rank)};
}

// Sums one slice over all parts, into every part or into this rank's.
void HostCommunicator::sum_slice(const Parts& parts, Slice slice, DType dtype, bool to_all) {
  for (int rank = 0; rank < world_size_; ++rank) slices_[rank] = parts.of(rank) + slice.begin;
  ordered_sum(slices_.data(), world_size_, to_all ? slices_.data() : &slices_[rank_],
              to_all ? world_size_ : 1, slice.size / size_of(dtype), dtype);
}

void HostCommunicator::all_reduce_sum(void* data, std::size_t count, DType dtype, StreamView stream) {
  if (stream.device().is_cuda()) {
    std::byte* const host = host_memory(stream.device());
    for_each_piece(count, kHostBytes / size_of(dtype), [&](std::size_t begin, std::size_t size) {
      std::byte* const device = as_bytes(data) + begin * size_of(dtype);
      copy_bytes(stream, host, device, size * size_of(dtype));
      stream.synchronize();
      all_reduce_sum(host, size, dtype, StreamView{});
      copy_bytes(stream, device, host, size * size_of(dtype));
      stream.synchronize();
    });
    return;
  }
  const std::size_t bytes = count * size_of(dtype);
  if (bytes <= kDirectBytes) {
    // Every rank sums everything by itself: more reads, but a single synchronisation.
    const Parts parts = staging();
    copy_host(parts.of(rank_), data, bytes);
    group_.begin({.kind = CollectiveKind::all_reduce, .dtype = dtype, .count = count});
    for (int rank = 0; rank < world_size_; ++rank) slices_[rank] = parts.of(rank);
    std::byte* const destination = as_bytes(data);
    ordered_sum(slices_.data(), world_size_, &destination, 1, count, dtype);
    next_staging();
    return;
  }
  const Parts parts = find(data, bytes);
  group_.begin(
      {.kind = CollectiveKind::all_reduce, .dtype = dtype, .count = count, .location = parts.location});
  if (group_.same_location()) {
    sum_slice(parts, slice_of(rank_, bytes), dtype, true);
    group_.synchronise();
  } else {
    all_reduce_staged(as_bytes(data), bytes, dtype);
  }
}

// Each rank copies a chunk into its staging area, sums its slice over all areas into its own, and collects
// the other slices from the ranks that summed them. The areas take turns, so that a rank may fill the next
// one while others still read the last; the synchronisation in between keeps it from getting further ahead.
void HostCommunicator::all_reduce_staged(std::byte* data, std::size_t bytes, DType dtype) {
  for_each_piece(bytes, SharedLayout::kStagingBytes, [&](std::size_t begin, std::size_t size) {
    const Parts parts = staging();
    copy_host(parts.of(rank_), data + begin, size);
    group_.synchronise();
    sum_slice(parts, slice_of(rank_, size), dtype, false);
    group_.synchronise();
    for (int rank = 0; rank < world_size_; ++rank) {
      const Slice slice = slice_of(rank, size);
      copy_host(data + begin + slice.begin, parts.of(rank) + slice.begin, slice.size);
    }
    next_staging();
  });
}

void HostCommunicator::broadcast(void* data, std::size_t count, DType dtype, int root, StreamView stream) {
  require<CommunicationError>(root >= 0 && root < world_size_,
                              "broadcast from rank {}, but the ranks are 0 to {}", root, world_size_ - 1);
  if (stream.device().is_cuda()) {
    std::byte* const host = host_memory(stream.device());
    for_each_piece(count, kHostBytes / size_of(dtype), [&](std::size_t begin, std::size_t size) {
      std::byte* const device = as_bytes(data) + begin * size_of(dtype);
      if (rank_ == root) copy_bytes(stream, host, device, size * size_of(dtype));
      stream.synchronize();
      broadcast(host, size, dtype, root, StreamView{});
      if (rank_ != root) copy_bytes(stream, device, host, size * size_of(dtype));
      stream.synchronize();
    });
    return;
  }
  const std::size_t bytes = count * size_of(dtype);
  CollectiveCall call{.kind = CollectiveKind::broadcast, .dtype = dtype, .root = root, .count = count};
  if (bytes > kDirectBytes) {
    const Parts parts = find(data, bytes);
    call.location = parts.location;
    group_.begin(call);
    if (group_.same_location()) {
      copy_host(data, parts.of(root), bytes);
      group_.synchronise();  // the root may write again
      return;
    }
  }
  for_each_piece(bytes, SharedLayout::kStagingBytes, [&](std::size_t begin, std::size_t size) {
    std::byte* const area = staging().of(root);
    if (rank_ == root) copy_host(area, as_bytes(data) + begin, size);
    bytes > kDirectBytes ? group_.synchronise() : group_.begin(call);
    if (rank_ != root) copy_host(as_bytes(data) + begin, area, size);
    next_staging();
  });
}

void HostCommunicator::all_gather(const void* send, void* receive, std::size_t count, DType dtype,
                                  StreamView stream) {
  const std::size_t ranks = static_cast<std::size_t>(world_size_);
  if (stream.device().is_cuda()) {
    std::byte* const host = host_memory(stream.device());
    for_each_piece(count, kHostBytes / (ranks + 1) / size_of(dtype),
                   [&](std::size_t begin, std::size_t size) {
                     const std::size_t bytes = size * size_of(dtype);
                     std::byte* const gathered = host + bytes;
                     copy_bytes(stream, host, as_bytes(send) + begin * size_of(dtype), bytes);
                     stream.synchronize();
                     all_gather(host, gathered, size, dtype, StreamView{});
                     for (std::size_t rank = 0; rank < ranks; ++rank) {
                       copy_bytes(stream, as_bytes(receive) + (rank * count + begin) * size_of(dtype),
                                  gathered + rank * bytes, bytes);
                     }
                     stream.synchronize();
                   });
    return;
  }
  const std::size_t bytes = count * size_of(dtype);
  const CollectiveCall call{.kind = CollectiveKind::all_gather, .dtype = dtype, .count = count};
  if (bytes > kDirectBytes) group_.begin(call);
  for_each_piece(bytes, SharedLayout::kStagingBytes, [&](std::size_t begin, std::size_t size) {
    const Parts parts = staging();
    copy_host(parts.of(rank_), as_bytes(send) + begin, size);
    bytes > kDirectBytes ? group_.synchronise() : group_.begin(call);
    for (int rank = 0; rank < world_size_; ++rank) {
      copy_host(as_bytes(receive) + static_cast<std::size_t>(rank) * bytes + begin, parts.of(rank), size);
    }
    next_staging();
  });
}

void HostCommunicator::barrier() { group_.begin({.kind = CollectiveKind::barrier}); }

void HostCommunicator::abort(const char* reason) noexcept { group_.abort(reason); }

std::byte* HostCommunicator::host_memory(Device device) {
  if (host_.bytes() == 0) host_ = Buffer::pinned(device, kHostBytes);
  return as_bytes(host_.data());
}

}  // namespace annulus
