#include "nccl/communicator.h"

namespace annulus {
namespace {

class IdentityCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  Buffer allocate(Device device, std::size_t bytes) override { return Buffer(device, bytes); }
  void all_reduce_sum(void*, std::size_t, DType, StreamView) override {}
  void broadcast(void*, std::size_t, DType, int root, StreamView) override {
    require<CommunicationError>(root == 0, "broadcast from rank {}, but this is the only rank, rank 0", root);
  }
  void all_gather(const void* send, void* receive, std::size_t count, DType dtype,
                  StreamView stream) override {
    if (send != receive && count > 0) copy_bytes(stream, receive, send, count * size_of(dtype));
  }
  void barrier() override {}
  void abort(const char*) noexcept override {}
};

}  // namespace

std::unique_ptr<Communicator> make_identity_communicator() {
  return std::make_unique<IdentityCommunicator>();
}

}  // namespace annulus
