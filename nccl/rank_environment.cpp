#include "nccl/rank_environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include "core/base/error.h"

namespace annulus {
namespace {

// A launcher by the variables that it sets.
struct Launcher {
  const char* name;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
  std::array<const char*, 4> job;  // these tell one run from another
};

constexpr Launcher kTorchrun{
    "torchrun",         "RANK",
    "WORLD_SIZE",       "LOCAL_RANK",
    "LOCAL_WORLD_SIZE", {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}};
constexpr Launcher kOpenMpi{"Open MPI",
                            "OMPI_COMM_WORLD_RANK",
                            "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE",
                            {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}};
constexpr Launcher kMpich{"MPICH",           "PMI_RANK",        "PMI_SIZE",
                          "MPI_LOCALRANKID", "MPI_LOCALNRANKS", {"PMI_JOBID"}};
constexpr Launcher kSlurm{
    "Slurm",         "SLURM_PROCID",          "SLURM_NTASKS",
    "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}};
constexpr const char* kSegment = "ANNULUS_SEGMENT_FD";

class Reader {
 public:
  explicit Reader(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  bool has(const char* name) const { return lookup_(name) != nullptr; }

  std::optional<int> number(const char* name) const {
    const char* const text = lookup_(name);
    if (text == nullptr) return std::nullopt;
    const std::string_view view = text;
    int value = -1;
    const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
    require<ConfigError>(error == std::errc{} && end == view.data() + view.size() && value >= 0,
                         "environment variable {}=\"{}\" is not a whole number from 0", name, view);
    return value;
  }

  int required(const char* name, const char* because) const {
    const std::optional<int> value = number(name);
    require<ConfigError>(value.has_value(),
                         "environment variable {} is set, but {} is not; set both or neither", because, name);
    return *value;
  }

  std::string text(const char* name) const {
    const char* const value = lookup_(name);
    return value == nullptr ? "" : value;
  }

 private:
  const EnvironmentLookup& lookup_;
};

// srun sets the step; in the shell of an allocation there is a process id, but no other rank runs.
bool started_by_srun(const Reader& reader) {
  return reader.has(kSlurm.rank) && (reader.has("SLURM_STEP_ID") || !reader.has("SLURM_JOB_ID"));
}

const Launcher* find_launcher(const Reader& reader) {
  for (const Launcher* launcher : {&kTorchrun, &kOpenMpi, &kMpich}) {
    if (reader.has(launcher->rank)) return launcher;
  }
  return started_by_srun(reader) ? &kSlurm : nullptr;
}

// SLURM_NTASKS_PER_NODE is set only if it was asked for, and may then be more than there are tasks.
int slurm_local_world_size(const Reader& reader, const RankEnvironment& found) {
  const int nodes = reader.number("SLURM_STEP_NUM_NODES").value_or(reader.number("SLURM_NNODES").value_or(1));
  if (nodes <= 1)
    return std::min(reader.number(kSlurm.local_world_size).value_or(found.world_size), found.world_size);
  const int even = (found.world_size + nodes - 1) / nodes;
  return std::max(reader.number(kSlurm.local_world_size).value_or(even), found.local_rank + 1);
}

void check_below(const char* what, const char* name, int value, const char* limit_name, int limit) {
  require<ConfigError>(value < limit,
                       "environment variables {}={} and {}={} contradict each other: {}s are 0 to {}", name,
                       value, limit_name, limit, what, limit - 1);
}

}  // namespace

std::optional<RankEnvironment> detect_rank_environment(const EnvironmentLookup& lookup) {
  const Reader reader(lookup);
  const Launcher* const launcher = find_launcher(reader);
  if (launcher == nullptr) {
    for (const char* half : {kTorchrun.world_size, kSegment}) {
      if (reader.has(half)) (void)reader.required(kTorchrun.rank, half);
    }
    require<ConfigError>(!reader.has("PMIX_RANK") || reader.has("SLURM_JOB_ID"),
                         "environment variable PMIX_RANK is set, but none that tells the world size "
                         "(OMPI_COMM_WORLD_SIZE, PMI_SIZE or SLURM_NTASKS); set RANK and WORLD_SIZE");
    return std::nullopt;
  }

  RankEnvironment found;
  found.launcher = launcher->name;
  found.rank = *reader.number(launcher->rank);
  found.world_size = reader.required(launcher->world_size, launcher->rank);
  require<ConfigError>(found.world_size >= 1, "environment variable {}=0, but a run has at least 1 rank",
                       launcher->world_size);
  check_below("rank", launcher->rank, found.rank, launcher->world_size, found.world_size);

  if (launcher == &kSlurm) {
    found.local_rank = reader.number(launcher->local_rank).value_or(found.rank);
    found.local_world_size = slurm_local_world_size(reader, found);
  } else if (reader.has(launcher->local_rank) || reader.has(launcher->local_world_size)) {
    found.local_rank = reader.required(launcher->local_rank, launcher->local_world_size);
    // Variables set by hand often lack the local world size; on one host there is nothing to tell.
    found.local_world_size = found.local_rank == found.rank
                                 ? reader.number(launcher->local_world_size).value_or(found.world_size)
                                 : reader.required(launcher->local_world_size, launcher->local_rank);
    require<ConfigError>(found.local_world_size >= 1 && found.local_world_size <= found.world_size,
                         "environment variables {}={} and {}={} contradict each other",
                         launcher->local_world_size, found.local_world_size, launcher->world_size,
                         found.world_size);
  } else {
    found.local_rank = found.rank;
    found.local_world_size = found.world_size;
  }
  check_below("local rank", launcher->local_rank, found.local_rank, launcher->local_world_size,
              found.local_world_size);

  for (const char* name : launcher->job) {
    if (name != nullptr && reader.has(name)) {
      found.job += fmt::format("{}{}={}", found.job.empty() ? "" : " ", name, reader.text(name));
    }
  }
  // Launchers that name no job are still the parent of all their ranks.
  if (found.job.empty()) found.job = fmt::format("started by process {}", getppid());
  if (launcher == &kTorchrun && reader.has(kSegment)) {
    found.launcher = "annulus-train --ranks";
    found.segment = *reader.number(kSegment);
  }
  return found;
}

std::optional<RankEnvironment> detect_rank_environment() {
  return detect_rank_environment([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace annulus
