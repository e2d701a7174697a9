// MPI_Allreduce, timed and checked exactly as bench_all_reduce does it: the peer that it is measured against.
//
//   mpirun -n 2 mpi_all_reduce --min-bytes 4K --max-bytes 64M --factor 4
//
// Prints one JSON object a line and size, from rank 0.
#include <fmt/core.h>
#include <mpi.h>

#include <climits>
#include <cstdio>
#include <vector>

#include "bench/all_reduce_timing.h"
#include "bench/bench_program.h"
#include "core/base/error.h"

namespace annulus::bench {
namespace {

AllReduceRank this_rank() {
  AllReduceRank access;
  MPI_Comm_rank(MPI_COMM_WORLD, &access.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &access.ranks);
  access.barrier = [] { MPI_Barrier(MPI_COMM_WORLD); };
  access.all_reduce = [](float* data, std::size_t count) {
    MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  };
  access.all_gather = [](const std::int64_t* send, std::int64_t* receive, std::size_t count) {
    MPI_Allgather(send, static_cast<int>(count), MPI_INT64_T, receive, static_cast<int>(count), MPI_INT64_T,
                  MPI_COMM_WORLD);
  };
  return access;
}

int run(int argc, char** argv) {
  AllReduceOptions options;
  CLI::App app("Time and bandwidth of MPI_Allreduce");
  options.add_to(app);
  if (!parse_options(app, argc, argv)) return 0;
  const AllReduceRank access = this_rank();
  std::size_t wrong = 0;
  for (const std::size_t count : options.counts()) {
    require<ConfigError>(count <= INT_MAX, "--max-bytes: MPI counts {} elements at most, not {}", INT_MAX,
                         count);
    std::vector<float> data(count);
    const AllReduceTiming timing = time_all_reduce(access, data.data(), count, options.seconds);
    wrong += timing.wrong;
    if (access.rank == 0)
      fmt::print("{}\n", all_reduce_row("mpi", "ordinary", access.ranks, count, timing).dump());
    std::fflush(stdout);
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace annulus::bench

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int status = annulus::bench::run_program("mpi_all_reduce", annulus::bench::run, argc, argv);
  MPI_Finalize();
  return status;
}
