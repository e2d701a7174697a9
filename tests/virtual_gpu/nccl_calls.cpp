// The calls of the virtual GPU's NCCL that move data, and groups of them.
#include <algorithm>

#include "nccl_clique.h"
#include "report.h"

namespace virtual_gpu {
namespace {

// The calls of the host thread since its outermost ncclGroupStart.
struct Group {
  struct Call {
    std::shared_ptr<NcclRank> rank;
    NcclCall call;
    cudaStream_t stream;
  };
  int depth = 0;
  std::vector<Call> calls;
  std::vector<std::shared_ptr<NcclRank>> joining;
  ncclResult_t failure = ncclSuccess;
};

Group& group() {
  thread_local Group instance;
  return instance;
}

ncclResult_t fail_call(NcclRank* rank, ncclResult_t result, const std::string& text) {
  if (group().depth > 0) group().failure = result;
  return nccl_failure(rank, result, text);
}

void require_memory_of(const NcclRank& rank, const NcclCall& call, const void* data) {
  if (data == nullptr || device_with(data) != &device_of(rank.device))
    report(nullptr, "{} on {}: a buffer is not memory of its device{}", describe(call), rank.name(),
           data == nullptr ? "; it is null" : describe_foreign(data));
}

ncclResult_t submit(ncclComm_t comm, NcclCall call, cudaStream_t handle) {
  const Lock lock(machine().mutex);
  const char* const name = nccl_name(call.kind);
  const std::shared_ptr<NcclRank> rank = live_rank(comm, name);
  if (const ncclResult_t status = check_ready(*rank, name); status != ncclSuccess)
    return fail_call(nullptr, status, rank->last_error);
  const Stream& stream = machine().stream(handle, name);
  if (stream.device != rank->device)
    report(nullptr, "{} on {}: the stream is of cuda:{}", describe(call), rank->name(), stream.device);
  if (stream.capture != nullptr)
    report(nullptr, "{} on {}: the stream captures, which the virtual GPU does not offer for NCCL",
           describe(call), rank->name());
  const int ranks = static_cast<int>(rank->clique->ranks.size());
  const bool names_rank = call.is_message() || call.kind == NcclKind::broadcast;
  if (names_rank && (call.other < 0 || call.other >= ranks))
    return fail_call(rank.get(), ncclInvalidArgument,
                     fmt::format("{}: rank {} is not one of {}", describe(call), call.other, ranks));
  if (call.count == 0 && !call.is_message()) return ncclSuccess;
  const bool sends =
      call.kind != NcclKind::receive && (call.kind != NcclKind::broadcast || call.other == rank->rank);
  if (!sends) call.send = nullptr;  // which NCCL does not read then
  if (call.count != 0 && sends) require_memory_of(*rank, call, call.send);
  if (call.count != 0 && call.kind != NcclKind::send) require_memory_of(*rank, call, call.receive);
  if (group().depth > 0) {
    group().calls.push_back({rank, call, handle});
    return ncclSuccess;
  }
  return launch(rank, {call}, ++nccl().groups, handle);
}

// Launches what each communicator was called for, in the order of their first calls.
ncclResult_t launch_group(const Group& ended) {
  ncclResult_t result = ncclSuccess;
  const std::uint64_t number = ++nccl().groups;
  std::vector<const NcclRank*> done;
  for (const Group::Call& first : ended.calls) {
    if (std::find(done.begin(), done.end(), first.rank.get()) != done.end()) continue;
    done.push_back(first.rank.get());
    std::vector<NcclCall> calls;
    for (const Group::Call& each : ended.calls) {
      if (each.rank != first.rank) continue;
      if (each.stream != first.stream)
        report(nullptr,
               "ncclGroupEnd: {} on {} is for another stream than {}: not offered by the virtual GPU",
               describe(each.call), each.rank->name(), describe(first.call));
      calls.push_back(each.call);
    }
    live_rank(const_cast<ncclComm_t>(first.rank.get()), "ncclGroupEnd");
    const ncclResult_t status = launch(first.rank, calls, number, first.stream);
    if (result == ncclSuccess || status > ncclSuccess) result = status == ncclSuccess ? result : status;
  }
  return result;
}

}  // namespace

bool join_in_group(const std::shared_ptr<NcclRank>& rank) {
  if (group().depth == 0) return false;
  group().joining.push_back(rank);
  return true;
}

}  // namespace virtual_gpu

using namespace virtual_gpu;

ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t dtype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return submit(comm, {NcclKind::all_reduce, send, receive, count, dtype, op}, stream);
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t receive_count,
                               ncclDataType_t dtype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return submit(comm, {NcclKind::reduce_scatter, send, receive, receive_count, dtype, op}, stream);
}

ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t send_count, ncclDataType_t dtype,
                           ncclComm_t comm, cudaStream_t stream) {
  return submit(comm, {NcclKind::all_gather, send, receive, send_count, dtype}, stream);
}

ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return submit(comm, {NcclKind::broadcast, send, receive, count, dtype, ncclSum, root}, stream);
}

ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return submit(comm, {NcclKind::send, send, nullptr, count, dtype, ncclSum, peer}, stream);
}

ncclResult_t ncclRecv(void* receive, std::size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return submit(comm, {NcclKind::receive, nullptr, receive, count, dtype, ncclSum, peer}, stream);
}

ncclResult_t ncclGroupStart() {
  ++group().depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  const Lock lock(machine().mutex);
  if (group().depth == 0)
    return nccl_failure(nullptr, ncclInvalidUsage, "ncclGroupEnd without an ncclGroupStart before it");
  if (--group().depth > 0) return ncclSuccess;
  const Group ended = std::exchange(group(), {});
  if (ended.failure != ncclSuccess) return ended.failure;
  const ncclResult_t launched = launch_group(ended);
  const ncclResult_t joined = finish_joining(ended.joining);
  return launched != ncclSuccess ? launched : joined;
}
