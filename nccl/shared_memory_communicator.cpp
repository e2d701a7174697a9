#include "nccl/shared_memory_communicator.h"

#include <thread>

#include "nccl/host_communicator.h"
#include "nccl/segment_memory.h"

namespace annulus {

std::unique_ptr<Communicator> make_shared_memory_communicator(
    int segment, int rank, int world_size, std::chrono::milliseconds deadline,
    const std::function<void(std::string_view)>& progress) {
  auto communicator = std::make_unique<HostCommunicator>(
      std::make_unique<SegmentMemory>(FileDescriptor(segment), rank, world_size), rank, world_size, deadline);
  communicator->join([] { std::this_thread::sleep_for(std::chrono::milliseconds{2}); }, progress);
  return communicator;
}

}  // namespace annulus
