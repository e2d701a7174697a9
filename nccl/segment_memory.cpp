#include "nccl/segment_memory.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "core/base/error.h"
#include "nccl/control_block.h"
#include "nccl/group_failure.h"
#include "nccl/shared_memory_communicator.h"

namespace annulus {
namespace {

std::shared_ptr<std::byte> map(int segment, std::uint64_t start, std::size_t bytes) {
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment, static_cast<off_t>(start));
  require<DeviceError>(memory != MAP_FAILED, "cannot map {} bytes of shared memory: {}", bytes,
                       std::strerror(errno));
  // Fewer, larger pages where the system offers them for shared memory; nothing is lost where it does not.
  (void)madvise(memory, bytes, MADV_HUGEPAGE);
  return {static_cast<std::byte*>(memory), [bytes](std::byte* pages) { munmap(pages, bytes); }};
}

// The lock by which a living process shows that it is `rank`.
struct flock lock_of(int rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

int make_shared_segment(int world_size) {
  require<ConfigError>(world_size >= 1, "a group needs at least 1 rank, not {}", world_size);
  FileDescriptor segment(memfd_create("annulus", MFD_CLOEXEC));
  const auto check = [](bool done) {
    require<CommunicationError>(done, "cannot make shared memory for the ranks: {}", std::strerror(errno));
  };
  check(segment.get() >= 0);
  check(ftruncate(segment.get(), static_cast<off_t>(SharedLayout{world_size}.bytes())) == 0);
  const auto size = static_cast<std::int32_t>(world_size);
  check(pwrite(segment.get(), &size, sizeof(size), offsetof(ControlBlock, world_size)) == sizeof(size));
  check(pwrite(segment.get(), &ControlBlock::kMagic, sizeof(ControlBlock::kMagic),
               offsetof(ControlBlock, magic)) == sizeof(ControlBlock::kMagic));
  return segment.release();
}

SegmentMemory::SegmentMemory(FileDescriptor segment, int rank, int world_size)
    : segment_(std::move(segment)), rank_(rank), world_size_(world_size) {
  std::uint64_t magic = 0;
  std::int32_t segment_size = 0;
  require<CommunicationError>(
      pread(segment_.get(), &magic, sizeof(magic), offsetof(ControlBlock, magic)) == sizeof(magic) &&
          magic == ControlBlock::kMagic &&
          pread(segment_.get(), &segment_size, sizeof(segment_size), offsetof(ControlBlock, world_size)) ==
              sizeof(segment_size),
      "descriptor {} is not the shared memory of a run of this version of Annulus", segment_.get());
  const SharedLayout layout{segment_size};
  base_ = map(segment_.get(), 0, layout.bytes());
  if (world_size != segment_size) {
    GroupFailure failure(*reinterpret_cast<ControlBlock*>(base()),
                         reinterpret_cast<RankSlot*>(base() + layout.slots()), rank, segment_size);
    failure.fail(fmt::format("rank {} was told that the world size is {}, but rank 0 that it is {}", rank,
                             world_size, segment_size));
  }
  fcntl(segment_.get(), F_SETFD, FD_CLOEXEC);
  struct flock lock = lock_of(rank);
  if (fcntl(segment_.get(), F_SETLK, &lock) != 0) {
    (void)fcntl(segment_.get(), F_GETLK, &lock);
    fail<CommunicationError>("rank {} has joined already, as process {}; start each rank once", rank,
                             lock.l_pid);
  }
}

std::shared_ptr<std::byte> SegmentMemory::piece(std::uint64_t start, std::size_t part_bytes) {
  const std::size_t bytes = part_bytes * static_cast<std::size_t>(world_size_);
  // Every rank grows the segment to the same size before any of them can ask for the next piece.
  const bool grown = ftruncate(segment_.get(), static_cast<off_t>(start + bytes)) == 0;
  require<DeviceError>(grown, "cannot grow the shared memory by {} bytes for {} ranks: {}", bytes,
                       world_size_, std::strerror(errno));
  std::shared_ptr<std::byte> piece = map(segment_.get(), start, bytes);
  // Own pages now, near this rank's core: not in the middle of the first step.
  std::byte* const part = piece.get() + (part_start(start, part_bytes) - start);
  const bool populated = madvise(part, part_bytes, MADV_POPULATE_WRITE) == 0 || errno == EINVAL;
  require<DeviceError>(populated, "not enough memory for {} bytes of shared memory: {}", part_bytes,
                       std::strerror(errno));
  return piece;
}

void SegmentMemory::discard_part(std::uint64_t start, std::size_t part_bytes) noexcept {
  (void)fallocate(segment_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(part_start(start, part_bytes)), static_cast<off_t>(part_bytes));
}

bool SegmentMemory::alive(int rank) const {
  struct flock lock = lock_of(rank);
  return fcntl(segment_.get(), F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

std::uint64_t SegmentMemory::part_start(std::uint64_t start, std::size_t part_bytes) const {
  return start + static_cast<std::size_t>(rank_) * part_bytes;
}

}  // namespace annulus
