// Which rank of which run this process is, as told by whatever started it.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace annulus {

struct RankEnvironment {
  int rank = 0;
  int local_rank = 0;  ///< rank among those of this host; picks the device
  int world_size = 1;
  int local_world_size = 1;
  std::string launcher = "none";  ///< who started the ranks, for messages: "torchrun", "Slurm", ...
  std::string job;                ///< the same on all ranks of one run and different for any two runs
  int segment = -1;               ///< descriptor of the segment that annulus-train's own launcher made, or -1
};

/// The value of an environment variable, or null.
using EnvironmentLookup = std::function<const char*(const char* name)>;

/// Reads the first of these that is present, so that the innermost launcher wins:
///   annulus-train --ranks     ANNULUS_SEGMENT_FD with torchrun's names
///   torchrun                  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
///   Open MPI                  OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
///   MPICH, Intel MPI          PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
///   Slurm (srun)              SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NTASKS_PER_NODE
/// Without local variables all ranks are taken to be on one host. Nothing when no launcher is found. Throws
/// ConfigError that names the variable whose value is not a number, is missing or contradicts another.
std::optional<RankEnvironment> detect_rank_environment(const EnvironmentLookup& lookup);

/// The same for this process's environment.
std::optional<RankEnvironment> detect_rank_environment();

}  // namespace annulus
