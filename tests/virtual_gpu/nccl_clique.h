// Communicators of the virtual GPU's NCCL: which ranks belong together, what each has called, and how far
// that is. Everything here is used under the machine's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "include/nccl.h"
#include "runtime.h"

namespace virtual_gpu {

enum class NcclKind { all_reduce, reduce_scatter, all_gather, broadcast, send, receive };

/// The arguments of one call.
struct NcclCall {
  NcclKind kind;
  const void* send;  ///< null where the call has none
  void* receive;     ///< the same
  std::size_t count;
  ncclDataType_t dtype;
  ncclRedOp_t op = ncclSum;
  int other = 0;  ///< the root of a broadcast, the peer of a message

  bool is_message() const { return kind == NcclKind::send || kind == NcclKind::receive; }
  bool reduces() const { return kind == NcclKind::all_reduce || kind == NcclKind::reduce_scatter; }
  std::size_t bytes() const;  ///< of `count` elements
};

/// "ncclAllReduce of 5 ncclFloat32 with ncclSum"
std::string describe(const NcclCall& call);
const char* nccl_name(NcclKind kind);
std::size_t nccl_bytes(ncclDataType_t dtype);

/// One rank's side of a meeting.
struct NcclPart {
  NcclCall call;
  int rank;
  std::thread::id thread;   ///< that made the call
  std::uint64_t group;      ///< number of the group, or of the call outside of a group
  bool arrived = false;     ///< the stream has come to it
  std::vector<char> input;  ///< what it brought
};

/// A collective, or a message: happens when the parts of all have arrived.
struct NcclMeeting {
  std::vector<std::optional<NcclPart>> parts;  ///< by rank; of a message, sender and receiver
  std::vector<char> sum;                       ///< of all inputs, once it is needed

  bool all_arrived() const;
  bool happened = false;
};

/// What one rank hands to a stream at once: a call, or its calls of a group.
struct NcclLaunch {
  struct Entry {
    std::shared_ptr<NcclMeeting> meeting;
    std::size_t part;
    const NcclPart& own() const { return *meeting->parts[part]; }
  };
  std::vector<Entry> entries;
  cudaStream_t stream = nullptr;
  bool never_starts = false;
};

enum class NcclPhase { absent, joined, finalizing, destroyed, aborted, dead };

/// The ranks of one id.
struct NcclClique {
  /// Collectives by {-1, -1, number}, messages by {from, to, number}; until they are over on all ranks.
  std::map<std::tuple<int, int, std::uint64_t>, std::weak_ptr<NcclMeeting>> meetings;
  std::vector<NcclRank*> ranks;  ///< null: not there yet, or gone
  std::vector<NcclPhase> phases;
  std::vector<int> devices;  ///< of those that have joined

  bool has_joined() const;
  bool is_quiescent() const;
};

/// What stands behind an ncclComm_t.
struct NcclRank {
  std::shared_ptr<NcclClique> clique;
  int rank, device;
  bool blocking;
  bool ready = false;  ///< all ranks have joined
  bool finalizing = false;
  bool gone = false;  ///< aborted
  ncclResult_t state = ncclSuccess;
  std::string last_error;
  int polls_until_told = 0;                          ///< that a peer has died
  std::deque<std::shared_ptr<NcclLaunch>> launches;  ///< called and not over, in order
  std::vector<std::shared_ptr<NcclLaunch>> held;     ///< of these, what is not in its stream yet
  std::uint64_t collectives = 0;
  std::map<int, std::uint64_t> sent, received;  ///< messages by peer

  std::string name() const;  ///< "rank 1 (cuda:1)"
};

/// What tests inject, by device; 0: nothing.
struct NcclFaults {
  std::size_t kill = 0, hang = 0, fail = 0;
};

struct Nccl {
  std::map<const NcclRank*, std::shared_ptr<NcclRank>> ranks;
  std::map<std::uint64_t, std::shared_ptr<NcclClique>> cliques;  ///< by number of the id
  std::uint64_t ids = 0;
  std::uint64_t groups = 0;
  std::map<int, NcclFaults> faults;
  std::string last_error;
};

Nccl& nccl();

/// The communicator for a handle; reports one that was destroyed, aborted or never made.
std::shared_ptr<NcclRank> live_rank(ncclComm_t comm, const char* call);

/// Keeps what went wrong for ncclGetLastError and returns `result`.
ncclResult_t nccl_failure(NcclRank* rank, ncclResult_t result, std::string text);

/// ncclSuccess if the communicator can take a call; otherwise what NCCL returns.
ncclResult_t check_ready(NcclRank& rank, const char* call);

/// Leaves the rank to ncclGroupEnd, if the host thread is within a group.
bool join_in_group(const std::shared_ptr<NcclRank>& rank);

/// Waits for all ranks of the blocking ones among these.
ncclResult_t finish_joining(const std::vector<std::shared_ptr<NcclRank>>& ranks);

/// Calls that rank makes at once. Matches each with those of the other ranks, and reports disagreement and
/// deadlocks. ncclInProgress if they are not in the stream yet.
ncclResult_t launch(const std::shared_ptr<NcclRank>& rank, const std::vector<NcclCall>& calls,
                    std::uint64_t group, cudaStream_t stream);

/// Puts a launch into its stream.
void enqueue_launch(const std::shared_ptr<NcclRank>& rank, const std::shared_ptr<NcclLaunch>& launch);

/// Reports ranks that wait for each other, or for one that has finalized its communicator.
void report_deadlocks(const NcclClique& clique);

/// "\n  rank 0 (cuda:0) waits in ... for ..." of its first launch.
std::string describe_pending(const NcclRank& rank);

/// What threads wait for that only calls of other threads can bring about; empty if for nothing.
std::string describe_nccl_waits();

/// The start of a launch: checks its buffers, takes what is sent, and spoils what will be received.
void begin_launch(const NcclRank& rank, NcclLaunch& launch);

/// The end of a launch: writes what is received.
void end_launch(const NcclRank& rank, NcclLaunch& launch);

/// The end of a launch that was aborted: what it would have received is garbage, which later work may read.
void abandon_launch(const NcclRank& rank, NcclLaunch& launch);

/// Element-wise in an order that `random` chooses; inputs have `count` elements each.
std::vector<char> reduce_in_some_order(const std::vector<const char*>& inputs, std::size_t count,
                                       ncclDataType_t dtype, ncclRedOp_t op, std::mt19937_64& random);

}  // namespace virtual_gpu
