// Group memory for processes: a memfd that every rank maps.
#pragma once

#include "nccl/file_descriptor.h"
#include "nccl/group_memory.h"

namespace annulus {

/// Maps a segment made by make_shared_segment(). Every rank's process keeps a lock on one byte of the
/// segment, which the kernel releases when the process ends, however it ends: that is how its peers know.
class SegmentMemory final : public GroupMemory {
 public:
  /// Throws CommunicationError if the descriptor is not a segment, if the segment is for another world size
  /// (the ranks that have joined fail too), or if another process is this rank already.
  SegmentMemory(FileDescriptor segment, int rank, int world_size);

  std::byte* base() const override { return base_.get(); }
  std::shared_ptr<std::byte> piece(std::uint64_t start, std::size_t part_bytes) override;
  void discard_part(std::uint64_t start, std::size_t part_bytes) noexcept override;
  bool alive(int rank) const override;

 private:
  std::uint64_t part_start(std::uint64_t start, std::size_t part_bytes) const;

  FileDescriptor segment_;
  int rank_;
  int world_size_;
  std::shared_ptr<std::byte> base_;
};

}  // namespace annulus
