#include "nccl/connect.h"

#include "nccl/host_communicator.h"
#include "nccl/rendezvous.h"
#include "nccl/segment_memory.h"
#include "nccl/shared_memory_communicator.h"

namespace annulus {

std::unique_ptr<Communicator> connect(const RankEnvironment& environment, std::chrono::milliseconds deadline,
                                      const std::function<void(std::string_view)>& progress) {
  const int rank = environment.rank, world_size = environment.world_size;
  if (world_size == 1) return make_identity_communicator();
  require<CommunicationError>(
      environment.local_world_size == world_size,
      "{} started {} ranks, of which {} on this host; this version needs all ranks of a run on one host",
      environment.launcher, world_size, environment.local_world_size);
  if (environment.segment >= 0) {
    return make_shared_memory_communicator(environment.segment, rank, world_size, deadline, progress);
  }
  if (rank != 0) {
    FileDescriptor segment = receive_segment(environment.job, deadline, progress);
    return make_shared_memory_communicator(segment.release(), rank, world_size, deadline, progress);
  }
  FileDescriptor segment(make_shared_segment(world_size));
  const SegmentOffer offer(environment.job, segment.get(), deadline);
  auto communicator = std::make_unique<HostCommunicator>(
      std::make_unique<SegmentMemory>(std::move(segment), rank, world_size), rank, world_size, deadline);
  communicator->join([&offer] { offer.serve(std::chrono::milliseconds{10}); }, progress);
  return communicator;
}

}  // namespace annulus
