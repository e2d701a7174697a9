// The collectives of ranks that share memory, whether they are threads or processes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "nccl/communicator.h"
#include "nccl/group_memory.h"
#include "nccl/rank_group.h"

namespace annulus {

/// See Communicator. Collectives of up to kDirectBytes cost one synchronisation; larger ones are zero-copy
/// where every rank's data is at the same place of a piece from allocate(), and otherwise go through staging
/// areas of the shared memory, chunk by chunk. Data on a CUDA device goes through host memory.
class HostCommunicator final : public Communicator {
 public:
  static constexpr std::size_t kDirectBytes = std::size_t{1} << 10;

  HostCommunicator(std::unique_ptr<GroupMemory> memory, int rank, int world_size,
                   std::chrono::milliseconds deadline);
  ~HostCommunicator() override;

  /// See RankGroup::join; to be called before anything else.
  void join(const std::function<void()>& pause, const std::function<void(std::string_view)>& progress);

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  Buffer allocate(Device device, std::size_t bytes) override;
  void all_reduce_sum(void* data, std::size_t count, DType dtype, StreamView stream) override;
  void broadcast(void* data, std::size_t count, DType dtype, int root, StreamView stream) override;
  void all_gather(const void* send, void* receive, std::size_t count, DType dtype,
                  StreamView stream) override;
  void barrier() override;
  void check() override { group_.check(); }
  void abort(const char* reason) noexcept override;

 private:
  /// One piece of allocate(): a part for each rank, one after the other.
  struct Piece {
    std::shared_ptr<std::byte> memory;
    std::uint64_t start = 0;
    std::size_t part_bytes = 0;
  };
  /// Shared with the buffers, which may live longer than the communicator.
  struct Pieces {
    std::shared_ptr<GroupMemory> memory;
    std::vector<Piece> list;
  };
  /// Memory of every rank: rank r's begins at base + r * stride.
  struct Parts {
    std::byte* base = nullptr;
    std::size_t stride = 0;
    std::uint64_t location = CollectiveCall::kPrivate;
    std::byte* of(int rank) const { return base + static_cast<std::size_t>(rank) * stride; }
  };
  struct Slice {
    std::size_t begin = 0;  // bytes
    std::size_t size = 0;
  };

  Parts find(const void* data, std::size_t bytes) const;
  Parts staging() const;
  void next_staging() { half_ ^= 1; }
  Slice slice_of(int rank, std::size_t bytes) const;
  void sum_slice(const Parts& parts, Slice slice, DType dtype, bool to_all);
  void all_reduce_staged(std::byte* data, std::size_t bytes, DType dtype);
  std::byte* host_memory(Device device);

  std::shared_ptr<Pieces> pieces_;
  RankGroup group_;
  int rank_;
  int world_size_;
  int half_ = 0;                    // the staging area whose turn it is
  std::uint64_t next_piece_;        // where the next piece starts
  std::vector<std::byte*> slices_;  // scratch of sum_slice(), one per rank
  Buffer host_;                     // page-locked, for data on a device
};

}  // namespace annulus
