// Which calls of the virtual GPU's NCCL belong together, and which can never end: each call is matched with
// those of the other ranks when it is made, and starts when the streams of all have come to it.
#include <algorithm>

#include "nccl_clique.h"
#include "report.h"

namespace virtual_gpu {
namespace {

const char* name_of(ncclDataType_t dtype) {
  constexpr const char* kNames[] = {"ncclInt8",    "ncclUint8",   "ncclInt32",   "ncclUint32",
                                    "ncclInt64",   "ncclUint64",  "ncclFloat16", "ncclFloat32",
                                    "ncclFloat64", "ncclBfloat16"};
  return kNames[static_cast<int>(dtype)];
}

const char* name_of(ncclRedOp_t op) {
  constexpr const char* kNames[] = {"ncclSum", "ncclProd", "ncclMax", "ncclMin", "ncclAvg"};
  return kNames[static_cast<int>(op)];
}

// What two ranks' calls of one collective, or the ends of one message, do not agree in; empty if in nothing.
std::string difference(const NcclCall& a, const NcclCall& b) {
  std::string text;
  const auto add = [&](bool differs, const char* what) {
    if (differs) text += (text.empty() ? "" : ", ") + std::string(what);
  };
  add(!a.is_message() && a.kind != b.kind, "kind");
  add(a.count != b.count, "count");
  add(a.dtype != b.dtype, "type");
  add(a.reduces() && b.reduces() && a.op != b.op, "operation");
  add(a.kind == NcclKind::broadcast && b.kind == NcclKind::broadcast && a.other != b.other, "root");
  return text;
}

// Takes the rank's place in the meeting that this call is for.
NcclLaunch::Entry meet(NcclRank& rank, const NcclCall& call, std::uint64_t group_number) {
  std::tuple<int, int, std::uint64_t> key;
  if (call.kind == NcclKind::send)
    key = {rank.rank, call.other, rank.sent[call.other]++};
  else if (call.kind == NcclKind::receive)
    key = {call.other, rank.rank, rank.received[call.other]++};
  else
    key = {-1, -1, rank.collectives++};
  std::weak_ptr<NcclMeeting>& known = rank.clique->meetings[key];
  std::shared_ptr<NcclMeeting> meeting = known.lock();
  if (meeting == nullptr) {
    meeting = std::make_shared<NcclMeeting>();
    meeting->parts.resize(call.is_message() ? 2 : rank.clique->ranks.size());
    known = meeting;
  }
  for (const auto& other : meeting->parts) {
    if (!other) continue;
    const NcclRank* const peer = rank.clique->ranks[static_cast<std::size_t>(other->rank)];
    const std::string peer_name = peer == nullptr ? fmt::format("rank {}", other->rank) : peer->name();
    if (const std::string differs = difference(other->call, call); !differs.empty())
      report(nullptr,
             "NCCL: the ranks disagree about {} {}: {} called {}, but {} called {}; they differ in {}",
             call.is_message() ? "message" : "collective", std::get<2>(key), peer_name, describe(other->call),
             rank.name(), describe(call), differs);
    if (other->thread == std::this_thread::get_id() && other->group != group_number)
      report(
          nullptr,
          "NCCL: one thread called {} for {} and then for {}: what one thread calls for several ranks must "
          "be between ncclGroupStart and ncclGroupEnd",
          describe(call), peer_name, rank.name());
  }
  const std::size_t part =
      call.is_message() ? call.kind == NcclKind::receive : static_cast<std::size_t>(rank.rank);
  meeting->parts[part] = NcclPart{call, rank.rank, std::this_thread::get_id(), group_number, false, {}};
  std::erase_if(rank.clique->meetings, [](const auto& entry) { return entry.second.expired(); });
  return {meeting, part};
}

bool is_in(const NcclLaunch& launch, const NcclMeeting& meeting) {
  return std::any_of(launch.entries.begin(), launch.entries.end(),
                     [&](const NcclLaunch::Entry& entry) { return entry.meeting.get() == &meeting; });
}

int rank_of_part(const NcclLaunch::Entry& entry, std::size_t part) {
  const NcclCall& call = entry.own().call;
  if (part == entry.part) return entry.own().rank;
  return call.is_message() ? call.other : static_cast<int>(part);
}

// Ranks whose next launch does not have the part that the first launch of `rank` waits for: with the call.
std::map<int, NcclCall> waits_of(const NcclRank& rank) {
  std::map<int, NcclCall> waits;
  const NcclLaunch& first = *rank.launches.front();
  for (const NcclLaunch::Entry& entry : first.entries)
    for (std::size_t part = 0; part < entry.meeting->parts.size(); ++part) {
      const int other = rank_of_part(entry, part);
      const NcclRank* const peer = rank.clique->ranks[static_cast<std::size_t>(other)];
      const bool called = entry.meeting->parts[part].has_value();
      if (part == entry.part || entry.meeting->happened) continue;
      if (called && peer != nullptr && !peer->launches.empty() &&
          is_in(*peer->launches.front(), *entry.meeting))
        continue;
      waits.emplace(other, entry.own().call);
    }
  return waits;
}

// Follows who waits for whom; returns true once it comes back to where it started.
bool find_cycle(const NcclClique& clique, int start, int at, std::vector<bool>& visited, std::string& text) {
  const NcclRank* const rank = clique.ranks[static_cast<std::size_t>(at)];
  if (rank == nullptr || rank->launches.empty() || rank->launches.front()->never_starts) return false;
  for (const auto& [other, call] : waits_of(*rank)) {
    const NcclRank* const peer = clique.ranks[static_cast<std::size_t>(other)];
    if (peer == nullptr || peer->launches.empty()) continue;
    const std::string step =
        fmt::format("\n  {} in {} waits for {}", rank->name(), describe(call), peer->name());
    if (other == start) {
      text = step;
      return true;
    }
    if (visited[static_cast<std::size_t>(other)]) continue;
    visited[static_cast<std::size_t>(other)] = true;
    if (find_cycle(clique, start, other, visited, text)) {
      text = step + text;
      return true;
    }
  }
  return false;
}

// Counts down to an injected fault.
bool comes_now(std::size_t& countdown) { return countdown != 0 && --countdown == 0; }

}  // namespace

const char* nccl_name(NcclKind kind) {
  constexpr const char* kNames[] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather",
                                    "ncclBroadcast", "ncclSend",          "ncclRecv"};
  return kNames[static_cast<int>(kind)];
}

std::size_t nccl_bytes(ncclDataType_t dtype) {
  constexpr std::size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kBytes[static_cast<int>(dtype)];
}

std::size_t NcclCall::bytes() const { return count * nccl_bytes(dtype); }

std::string describe(const NcclCall& call) {
  std::string text = fmt::format("{} of {} {}", nccl_name(call.kind), call.count, name_of(call.dtype));
  if (call.reduces()) text += fmt::format(" with {}", name_of(call.op));
  if (call.kind == NcclKind::broadcast || call.kind == NcclKind::receive)
    text += fmt::format(" from rank {}", call.other);
  if (call.kind == NcclKind::send) text += fmt::format(" to rank {}", call.other);
  return text;
}

bool NcclMeeting::all_arrived() const {
  return happened ||
         std::all_of(parts.begin(), parts.end(), [](const auto& part) { return part && part->arrived; });
}

void report_deadlocks(const NcclClique& clique) {
  for (const NcclRank* rank : clique.ranks) {
    if (rank == nullptr || rank->launches.empty()) continue;
    for (const auto& [other, call] : waits_of(*rank)) {
      const NcclRank* const peer = clique.ranks[static_cast<std::size_t>(other)];
      const NcclPhase phase = clique.phases[static_cast<std::size_t>(other)];
      const bool left = phase == NcclPhase::finalizing || phase == NcclPhase::destroyed;
      if (left && (peer == nullptr || peer->launches.empty()))
        report(nullptr, "NCCL: {} waits in {} for rank {}, which has finalized its communicator",
               rank->name(), describe(call), other);
    }
    std::vector<bool> visited(clique.ranks.size());
    std::string text;
    if (find_cycle(clique, rank->rank, rank->rank, visited, text))
      report(nullptr,
             "NCCL deadlock: ranks wait for each other. Sends and receives that need each other must be "
             "between ncclGroupStart and ncclGroupEnd.{}",
             text);
  }
}

std::string describe_pending(const NcclRank& rank) {
  const NcclLaunch& first = *rank.launches.front();
  std::string missing, late;
  for (const NcclLaunch::Entry& entry : first.entries)
    for (std::size_t part = 0; part < entry.meeting->parts.size(); ++part) {
      const auto& other = entry.meeting->parts[part];
      if (!other)
        missing += fmt::format("{}rank {}", missing.empty() ? "" : ", ", rank_of_part(entry, part));
      else if (!other->arrived)
        late += fmt::format("{}rank {}", late.empty() ? "" : ", ", other->rank);
    }
  return fmt::format("\n  {} is in {}{}{}", rank.name(), describe(first.entries.front().own().call),
                     missing.empty() ? "" : "; not called by " + missing,
                     late.empty() ? "" : "; not reached by the stream of " + late);
}

void enqueue_launch(const std::shared_ptr<NcclRank>& rank, const std::shared_ptr<NcclLaunch>& launch) {
  Stream& stream = launch->stream == nullptr ? device_of(rank->device).default_stream
                                             : machine().stream(launch->stream, "an NCCL call");
  machine().enqueue(stream, {[=] {
                               if (!rank->gone) begin_launch(*rank, *launch);
                             },
                             [=] {
                               const bool next = !rank->launches.empty() && rank->launches.front() == launch;
                               return rank->gone || (next && !launch->never_starts);
                             }});
  machine().enqueue(stream, {[=] {
                               if (rank->gone) return abandon_launch(*rank, *launch);
                               end_launch(*rank, *launch);
                               rank->launches.pop_front();
                               report_deadlocks(*rank->clique);
                             },
                             [=] {
                               return rank->gone ||
                                      std::all_of(launch->entries.begin(), launch->entries.end(),
                                                  [](const NcclLaunch::Entry& entry) {
                                                    return entry.meeting->all_arrived();
                                                  });
                             }});
}

ncclResult_t launch(const std::shared_ptr<NcclRank>& rank, const std::vector<NcclCall>& calls,
                    std::uint64_t group_number, cudaStream_t stream) {
  NcclFaults& faults = nccl().faults[rank->device];
  if (comes_now(faults.kill)) {
    rank->clique->phases[static_cast<std::size_t>(rank->rank)] = NcclPhase::dead;
    return rank->state = nccl_failure(rank.get(), ncclSystemError, rank->name() + " has died");
  }
  const auto made = std::make_shared<NcclLaunch>();
  made->stream = stream;
  const bool fails = comes_now(faults.fail);
  made->never_starts = comes_now(faults.hang) || fails;
  for (const NcclCall& call : calls) made->entries.push_back(meet(*rank, call, group_number));
  rank->launches.push_back(made);
  report_deadlocks(*rank->clique);
  if (fails) {
    rank->state = ncclSystemError;
    nccl_failure(rank.get(), ncclSystemError, "an injected failure of " + describe(calls.front()));
  }
  if (!rank->blocking && !fails && machine().random()() % 2 == 0) {
    rank->held.push_back(made);
    return rank->state = ncclInProgress;
  }
  enqueue_launch(rank, made);
  return ncclSuccess;
}

}  // namespace virtual_gpu
