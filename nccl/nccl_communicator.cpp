#include "nccl/nccl_communicator.h"

#if ANNULUS_HAS_NCCL
#include <algorithm>
#include <optional>

#include "nccl/nccl_rank.h"
#include "nccl/ordered_sum.h"
#endif

namespace annulus {

#if ANNULUS_HAS_NCCL
namespace {

constexpr std::size_t kPackBytes = 16;  // slices are whole packs, which NCCL moves fastest

std::byte* at(void* data, std::size_t bytes) { return static_cast<std::byte*>(data) + bytes; }

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i32:
      return ncclInt32;
    case DType::i64:
      return ncclInt64;
    case DType::u8:
      return ncclUint8;
  }
  fail<ShapeError>("NCCL does not move elements of dtype {}", static_cast<int>(dtype));
}

cudaStream_t handle(StreamView stream) { return static_cast<cudaStream_t>(stream.handle()); }

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Communicator& host, Device device, std::chrono::milliseconds deadline,
                   std::size_t workspace_bytes)
      : device_(device),
        workspace_limit_(workspace_bytes),
        own_stream_(device),
        done_(device),
        marked_(device),
        token_(device, kPackBytes) {
    zero_bytes(own_stream_, token_.data(), token_.bytes());
    own_stream_.synchronize();
    group_.emplace(host, device, deadline);
  }

  int rank() const override { return group_->rank(); }
  int world_size() const override { return group_->world_size(); }
  Buffer allocate(Device device, std::size_t bytes) override { return Buffer(device, bytes); }

  void all_reduce_sum(void* data, std::size_t count, DType dtype, StreamView stream) override {
    require_own(stream, "all_reduce_sum");
    group_->check();
    if (count == 0) return;
    const std::size_t round = static_cast<std::size_t>(world_size()) * kPackBytes / size_of(dtype);
    const std::size_t largest = std::max(workspace_limit_ / size_of(dtype) / round, std::size_t{1}) * round;
    begin(stream);
    for (std::size_t done = 0; done < count; done += largest)
      sum_piece(at(data, done * size_of(dtype)), std::min(largest, count - done), dtype, stream);
    done_.record(stream);
  }

  void broadcast(void* data, std::size_t count, DType dtype, int root, StreamView stream) override {
    require<CommunicationError>(root >= 0 && root < world_size(),
                                "broadcast from rank {}, but the ranks are 0 to {}", root, world_size() - 1);
    require_own(stream, "broadcast");
    group_->check();
    if (count == 0) return;
    begin(stream);
    group_->submit({"broadcast", count, dtype}, [&](ncclComm_t comm) {
      return ncclBroadcast(data, data, count, nccl_type(dtype), root, comm, handle(stream));
    });
    done_.record(stream);
  }

  void all_gather(const void* send, void* receive, std::size_t count, DType dtype,
                  StreamView stream) override {
    require_own(stream, "all_gather");
    group_->check();
    if (count == 0) return;
    begin(stream);
    group_->submit({"all-gather", count, dtype}, [&](ncclComm_t comm) {
      return ncclAllGather(send, receive, count, nccl_type(dtype), comm, handle(stream));
    });
    done_.record(stream);
  }

  // Nobody has the sum before everybody has brought its part.
  void barrier() override {
    begin(own_stream_);
    group_->submit({"barrier", 1, DType::u8}, [&](ncclComm_t comm) {
      return ncclAllReduce(token_.data(), token_.data(), 1, ncclUint8, ncclSum, comm, handle(own_stream_));
    });
    done_.record(own_stream_);
    wait(own_stream_);
  }

  void wait(StreamView stream) override {
    group_->check();
    if (!stream.device().is_cuda()) return;
    marked_.record(stream);
    wait_for(marked_);
  }

  void check() override { group_->check(); }
  void abort(const char* reason) noexcept override { group_->abort(reason); }

 private:
  void require_own(StreamView stream, const char* call) const {
    require<DeviceError>(stream.device() == device_, "{} on a stream of {}, but rank {} communicates on {}",
                         call, stream.device().to_string(), rank(), device_.to_string());
  }

  // The workspace, and NCCL's communicator, are of one collective at a time, whatever the streams.
  void begin(StreamView stream) {
    if (used_) done_.wait(stream);
    used_ = true;
  }

  void wait_for(const Event& event) {
    try {
      group_->wait(event);
    } catch (const DeviceError& error) {  // nothing more will come from this rank
      group_->abort(error.what());
      throw;
    }
  }

  // Every rank's elements are cut into one slice for each rank, of whole packs and all of the same size, and
  // a rest of less than a pack for each rank. A rank receives its slice and the rest from all others, one
  // behind the other, adds both, and collects the other slices; the rest it has then, like all others.
  void sum_piece(std::byte* data, std::size_t count, DType dtype, StreamView stream) {
    const std::size_t bytes = size_of(dtype), pack = kPackBytes / bytes;
    const auto ranks = static_cast<std::size_t>(world_size()), own = static_cast<std::size_t>(rank());
    const std::size_t slice = count / (ranks * pack) * pack, rest = count - ranks * slice;
    const std::size_t stride = (slice + rest + pack - 1) / pack * pack;
    std::byte* const received = workspace((ranks - 1) * stride * bytes);
    std::byte* const own_slice = data + own * slice * bytes;
    std::byte* const own_rest = data + ranks * slice * bytes;

    group_->submit({"all-reduce", count, dtype}, [&](ncclComm_t comm) {
      ncclResult_t result = ncclSuccess;
      const auto exchange = [&](const std::byte* send, std::byte* receive, std::size_t size,
                                std::size_t peer) {
        const auto call = [&](ncclResult_t called) {
          if (result == ncclSuccess && called != ncclInProgress) result = called;
        };
        if (size == 0) return;
        call(ncclSend(send, size, nccl_type(dtype), static_cast<int>(peer), comm, handle(stream)));
        call(ncclRecv(receive, size, nccl_type(dtype), static_cast<int>(peer), comm, handle(stream)));
      };
      for (std::size_t peer = 0; peer < ranks; ++peer) {
        if (peer == own) continue;
        std::byte* const part = received + (peer < own ? peer : peer - 1) * stride * bytes;
        exchange(data + peer * slice * bytes, part, slice, peer);
        exchange(own_rest, part + slice * bytes, rest, peer);
      }
      return result;
    });
    ordered_sum_on_device(stream, own_slice, received, stride, rank(), world_size(), slice, dtype);
    ordered_sum_on_device(stream, own_rest, received + slice * bytes, stride, rank(), world_size(), rest,
                          dtype);
    if (slice == 0) return;
    group_->submit({"all-reduce", count, dtype}, [&](ncclComm_t comm) {
      return ncclAllGather(own_slice, data, slice, nccl_type(dtype), comm, handle(stream));
    });
  }

  // Only grows: a step that has run once allocates nothing any more.
  std::byte* workspace(std::size_t bytes) {
    if (workspace_.bytes() < bytes) {
      if (workspace_.bytes() > 0) wait_for(done_);  // to free memory waits for its device, without a deadline
      workspace_ = Buffer();
      workspace_ = Buffer(device_, bytes);
    }
    return at(workspace_.data(), 0);
  }

  Device device_;
  std::size_t workspace_limit_;
  Stream own_stream_;  // for barriers
  Event done_;         // the last collective
  Event marked_;       // what wait() waits for
  bool used_ = false;  // done_ has been recorded
  Buffer token_;       // what barriers sum
  Buffer workspace_;
  std::optional<NcclRank> group_;  // the first to go: it ends what is pending
};

}  // namespace

bool has_nccl() { return true; }

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, Device device,
                                                     std::chrono::milliseconds deadline,
                                                     std::size_t workspace_bytes) {
  require<ConfigError>(device.is_cuda(), "NCCL is for CUDA devices, and rank {} is on {}", host.rank(),
                       device.to_string());
  if (host.world_size() == 1) return make_identity_communicator();
  return std::make_unique<NcclCommunicator>(host, device, deadline, workspace_bytes);
}

#else

bool has_nccl() { return false; }

std::unique_ptr<Communicator> make_nccl_communicator(Communicator&, Device, std::chrono::milliseconds,
                                                     std::size_t) {
  fail<ConfigError>(
      "this build has no NCCL; install it (Debian: libnccl-dev), or put nccl.h and libnccl next to the CUDA "
      "toolkit, and build with CUDA again");
}

#endif

}  // namespace annulus
