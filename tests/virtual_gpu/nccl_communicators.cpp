// The life of the virtual GPU's NCCL communicators.
#include <algorithm>
#include <cstring>

#include "nccl_clique.h"
#include "report.h"

namespace virtual_gpu {

Nccl& nccl() {
  static Nccl* const instance = new Nccl;  // leaked like the machine
  return *instance;
}

std::string NcclRank::name() const { return fmt::format("rank {} (cuda:{})", rank, device); }

bool NcclClique::has_joined() const {
  return std::find(phases.begin(), phases.end(), NcclPhase::absent) == phases.end();
}

bool NcclClique::is_quiescent() const {
  return std::all_of(phases.begin(), phases.end(), [](NcclPhase phase) {
    return phase == NcclPhase::finalizing || phase == NcclPhase::destroyed;
  });
}

std::shared_ptr<NcclRank> live_rank(ncclComm_t comm, const char* call) {
  const auto found = nccl().ranks.find(comm);
  if (found == nccl().ranks.end())
    report(nullptr, "{}: the communicator was destroyed, aborted or never created", call);
  return found->second;
}

ncclResult_t nccl_failure(NcclRank* rank, ncclResult_t result, std::string text) {
  nccl().last_error = std::move(text);
  if (rank != nullptr) rank->last_error = nccl().last_error;
  return result;
}

ncclResult_t check_ready(NcclRank& rank, const char* call) {
  if (rank.state == ncclInProgress)
    return nccl_failure(
        &rank, ncclInvalidArgument,
        fmt::format("{}: the communicator is in progress; poll ncclCommGetAsyncError first", call));
  if (rank.state != ncclSuccess) return rank.state;
  if (rank.finalizing)
    return nccl_failure(&rank, ncclInvalidArgument, fmt::format("{}: the communicator was finalized", call));
  return ncclSuccess;
}

namespace {

constexpr char kIdMark[] = "virtual GPU's NCCL id";

// Ranks of a clique that are in none of these phases: "rank 1, rank 3".
std::string others(const NcclClique& clique, std::initializer_list<NcclPhase> phases) {
  std::string text;
  for (std::size_t i = 0; i < clique.phases.size(); ++i)
    if (std::find(phases.begin(), phases.end(), clique.phases[i]) == phases.end())
      text += fmt::format("{}rank {}", text.empty() ? "" : ", ", i);
  return text;
}

NcclPhase& phase_of(NcclRank& rank) { return rank.clique->phases[static_cast<std::size_t>(rank.rank)]; }

bool failed(const NcclRank& rank) { return device_of(rank.device).failed; }

// The outcome once all have joined.
ncclResult_t settle(NcclRank& rank) {
  rank.ready = true;
  const std::vector<int>& devices = rank.clique->devices;
  for (std::size_t first = 0; first < devices.size(); ++first)
    for (std::size_t second = first + 1; second < devices.size(); ++second)
      if (devices[first] == devices[second])
        return rank.state = nccl_failure(&rank, ncclInvalidUsage,
                                         fmt::format("duplicate GPU: ranks {} and {} both have cuda:{}",
                                                     first, second, devices[first]));
  return rank.state = ncclSuccess;
}

void forget(NcclRank& rank, NcclPhase phase) {
  phase_of(rank) = phase;
  rank.clique->ranks[static_cast<std::size_t>(rank.rank)] = nullptr;
  machine().objects.erase(&rank);
  nccl().ranks.erase(&rank);  // the last owner may be an operation in a stream
  machine().changed.notify_all();
}

void finalize(NcclRank& rank) {
  rank.finalizing = true;
  phase_of(rank) = NcclPhase::finalizing;
  report_deadlocks(*rank.clique);
  machine().changed.notify_all();
}

bool is_finalized(const NcclRank& rank) {
  return failed(rank) || (rank.launches.empty() && rank.clique->is_quiescent());
}

// What happens in the background of a communicator that does not block.
void progress(const std::shared_ptr<NcclRank>& rank) {
  if (rank->state == ncclInProgress && machine().random()() % 2 == 0) {
    if (!rank->ready) {
      if (rank->clique->has_joined()) settle(*rank);
    } else if (rank->finalizing) {
      if (is_finalized(*rank)) rank->state = ncclSuccess;
    } else {
      rank->state = ncclSuccess;
      for (const auto& launch : std::exchange(rank->held, {})) enqueue_launch(rank, launch);
    }
  }
  const auto& phases = rank->clique->phases;
  const auto dead = std::find(phases.begin(), phases.end(), NcclPhase::dead);
  if (dead == phases.end() || (rank->state != ncclSuccess && rank->state != ncclInProgress)) return;
  if (rank->polls_until_told == 0) rank->polls_until_told = 3 + static_cast<int>(machine().random()() % 8);
  if (--rank->polls_until_told == 0)
    rank->state = nccl_failure(rank.get(), ncclRemoteError,
                               fmt::format("rank {} has closed the connection", dead - phases.begin()));
}

}  // namespace

ncclResult_t finish_joining(const std::vector<std::shared_ptr<NcclRank>>& ranks) {
  ncclResult_t result = ncclSuccess;
  for (const auto& rank : ranks) {
    if (!rank->blocking) {
      if (result == ncclSuccess) result = ncclInProgress;
      continue;
    }
    machine().run_until([&] { return rank->clique->has_joined(); }, "ncclCommInitRank");
    if (const ncclResult_t status = settle(*rank); status != ncclSuccess) result = status;
  }
  return result;
}

std::string describe_nccl_waits() {
  std::string text;
  for (const auto& [key, rank] : nccl().ranks) {
    if (!rank->ready)
      text += fmt::format("\n  {} joins, but these have not: {}", rank->name(),
                          others(*rank->clique, {NcclPhase::joined}));
    else if (!rank->launches.empty())
      text += describe_pending(*rank);
    else if (rank->finalizing && !rank->clique->is_quiescent())
      text += fmt::format("\n  {} has finalized its communicator, but these have not: {}", rank->name(),
                          others(*rank->clique, {NcclPhase::finalizing, NcclPhase::destroyed}));
  }
  return text;
}

}  // namespace virtual_gpu

using namespace virtual_gpu;

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    case ncclNumResults:
      break;
  }
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t comm) {
  const Lock lock(machine().mutex);
  return comm == nullptr ? nccl().last_error.c_str()
                         : live_rank(comm, "ncclGetLastError")->last_error.c_str();
}

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const Lock lock(machine().mutex);
  *id = {};
  std::memcpy(id->internal, kIdMark, sizeof kIdMark);
  const std::uint64_t number = ++nccl().ids;
  std::memcpy(id->internal + sizeof kIdMark, &number, sizeof number);
  nccl().cliques[number] = std::make_shared<NcclClique>();
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, nranks, id, rank, nullptr);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const Lock lock(machine().mutex);
  const ncclConfig_t standard = NCCL_CONFIG_INITIALIZER;
  if (nranks < 1 || rank < 0 || rank >= nranks)
    return nccl_failure(nullptr, ncclInvalidArgument, fmt::format("rank {} of {} ranks", rank, nranks));
  if (config != nullptr && (config->magic != standard.magic || config->size != standard.size))
    return nccl_failure(nullptr, ncclInvalidArgument,
                        "the configuration is not from NCCL_CONFIG_INITIALIZER");
  std::uint64_t number = 0;
  std::memcpy(&number, id.internal + sizeof kIdMark, sizeof number);
  const auto found = nccl().cliques.find(number);
  if (std::memcmp(id.internal, kIdMark, sizeof kIdMark) != 0 || found == nccl().cliques.end())
    report(nullptr,
           "ncclCommInitRank of rank {}: the id is not from ncclGetUniqueId, or its ranks have joined", rank);
  const std::shared_ptr<NcclClique> clique = found->second;
  const auto size = static_cast<std::size_t>(nranks);
  if (clique->ranks.empty()) {
    clique->ranks.resize(size);
    clique->phases.resize(size);
    clique->devices.resize(size);
  }
  if (clique->ranks.size() != size)
    report(nullptr, "ncclCommInitRank: rank {} says that there are {} ranks, another one said {}", rank,
           nranks, clique->ranks.size());
  if (clique->phases[static_cast<std::size_t>(rank)] != NcclPhase::absent)
    report(nullptr, "ncclCommInitRank: there are two of rank {}", rank);

  const auto made = std::make_shared<NcclRank>();
  made->clique = clique;
  made->rank = rank;
  made->device = current_device();
  made->blocking = config == nullptr || config->blocking != 0;
  made->state = made->blocking ? ncclSuccess : ncclInProgress;
  current();
  clique->ranks[static_cast<std::size_t>(rank)] = made.get();
  clique->phases[static_cast<std::size_t>(rank)] = NcclPhase::joined;
  clique->devices[static_cast<std::size_t>(rank)] = made->device;
  if (clique->has_joined()) nccl().cliques.erase(number);
  nccl().ranks[made.get()] = made;
  machine().objects[made.get()] = "NCCL communicator";
  machine().other_threads_waits = describe_nccl_waits;
  machine().changed.notify_all();
  *comm = made.get();
  return join_in_group(made) ? ncclSuccess : finish_joining({made});
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const Lock lock(machine().mutex);
  const std::shared_ptr<NcclRank> rank = live_rank(comm, "ncclCommGetAsyncError");
  progress(rank);
  machine().run_a_little();
  *error = failed(*rank) ? ncclUnhandledCudaError : rank->state;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Lock lock(machine().mutex);
  const std::shared_ptr<NcclRank> rank = live_rank(comm, "ncclCommFinalize");
  if (const ncclResult_t status = check_ready(*rank, "ncclCommFinalize"); status != ncclSuccess)
    return status;
  finalize(*rank);
  if (!rank->blocking) return rank->state = ncclInProgress;
  machine().run_until([&] { return is_finalized(*rank); }, "ncclCommFinalize");
  return ncclSuccess;
}

// Finalizes first what has not been finalized, and waits for that.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const Lock lock(machine().mutex);
  const std::shared_ptr<NcclRank> rank = live_rank(comm, "ncclCommDestroy");
  if (rank->state == ncclInProgress) return check_ready(*rank, "ncclCommDestroy");
  if (!rank->finalizing) finalize(*rank);
  machine().run_until([&] { return is_finalized(*rank); }, "ncclCommDestroy");
  forget(*rank, NcclPhase::destroyed);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const Lock lock(machine().mutex);
  const std::shared_ptr<NcclRank> rank = live_rank(comm, "ncclCommAbort");
  rank->gone = true;
  for (const auto& launch : rank->launches)
    for (const NcclLaunch::Entry& entry : launch->entries)
      if (!entry.meeting->happened) entry.meeting->parts[entry.part]->arrived = false;
  rank->launches.clear();
  rank->held.clear();
  forget(*rank, phase_of(*rank) == NcclPhase::dead ? NcclPhase::dead : NcclPhase::aborted);
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  const Lock lock(machine().mutex);
  const std::shared_ptr<NcclRank> rank = live_rank(comm, "ncclCommCount");
  *count = static_cast<int>(rank->clique->ranks.size());
  return check_ready(*rank, "ncclCommCount");
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  const Lock lock(machine().mutex);
  const std::shared_ptr<NcclRank> rank = live_rank(comm, "ncclCommCuDevice");
  *device = rank->device;
  return check_ready(*rank, "ncclCommCuDevice");
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* result) {
  const Lock lock(machine().mutex);
  const std::shared_ptr<NcclRank> rank = live_rank(comm, "ncclCommUserRank");
  *result = rank->rank;
  return check_ready(*rank, "ncclCommUserRank");
}
