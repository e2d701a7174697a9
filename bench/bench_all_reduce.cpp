// The all-reduce of the shared-memory communicator: time and bandwidth over sizes and ranks, one process and
// one core per rank, in zero-copy and in ordinary memory. METRICS.md defines every column.
//
//   bench_all_reduce --ranks 2,4 --min-bytes 1K --max-bytes 256M --factor 4 [--limit] [--json]
#include <fmt/core.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/all_reduce_limit.h"
#include "bench/all_reduce_timing.h"
#include "bench/bench_program.h"
#include "bench/rank_processes.h"
#include "core/base/buffer.h"

namespace annulus::bench {
namespace {

/// Where the data lies: in memory from Communicator::allocate(), or in the process's own.
enum class Memory { zero_copy, ordinary };

AllReduceTiming measure(Memory memory, int ranks, std::size_t count, double seconds) {
  return run_ranks(ranks,
                   [&](Communicator& communicator) {
                     const std::size_t bytes = count * sizeof(float);
                     const Buffer buffer = memory == Memory::zero_copy
                                               ? communicator.allocate(Device::cpu(), bytes)
                                               : Buffer(Device::cpu(), bytes);
                     const AllReduceRank rank{
                         .rank = communicator.rank(),
                         .ranks = ranks,
                         .barrier = [&] { communicator.barrier(); },
                         .all_reduce =
                             [&](float* data, std::size_t elements) {
                               communicator.all_reduce_sum(data, elements, DType::f32, StreamView());
                             },
                         .all_gather =
                             [&](const std::int64_t* send, std::int64_t* receive, std::size_t elements) {
                               communicator.all_gather(send, receive, elements, DType::i64, StreamView());
                             }};
                     return time_all_reduce(rank, static_cast<float*>(buffer.data()), count, seconds);
                   })
      .front();
}

void print_header() {
  fmt::print("{:9} {:>5} {:>10} {:>10} {:>5} {:>5} {:>11} {:>10} {:>10} {:>6} {:>10} {:>7}\n", "memory",
             "ranks", "size B", "count", "type", "redop", "time us", "algbw GB/s", "busbw GB/s", "#wrong",
             "limit GB/s", "% limit");
}

void print_row(const nlohmann::json& row) {
  const auto text = [&row](const char* name) { return row[name].get<std::string>(); };
  const auto whole = [&row](const char* name) { return row[name].get<std::size_t>(); };
  const auto number = [&row](const char* name) { return row[name].get<double>(); };
  fmt::print("{:9} {:>5} {:>10} {:>10} {:>5} {:>5} {:>11.2f} {:>10.2f} {:>10.2f} {:>6}", text("memory"),
             whole("ranks"), whole("size"), whole("count"), text("type"), text("redop"), number("time_us"),
             number("algbw_gb_per_s"), number("busbw_gb_per_s"), whole("wrong"));
  if (row.contains("limit_gb_per_s"))
    fmt::print(" {:>10.2f} {:>7.1f}\n", number("limit_gb_per_s"), 100 * number("fraction_of_limit"));
  else
    fmt::print(" {:>10} {:>7}\n", "-", "-");
}

int run(int argc, char** argv) {
  std::vector<int> ranks{2, 4};
  AllReduceOptions options;
  bool limit = false, json = false;
  CLI::App app("Time and bandwidth of the all-reduce between processes of this host");
  app.add_option("--ranks", ranks, "numbers of ranks, one core each as far as there are cores")
      ->delimiter(',')
      ->check(CLI::Range(2, 128))
      ->capture_default_str();
  options.add_to(app);
  app.add_flag("--limit", limit, "measure the limit of two cores too, beside two ranks");
  app.add_flag("--json", json, "one JSON object a line instead of a table");
  if (!parse_options(app, argc, argv)) return 0;

  const std::vector<std::size_t> counts = options.counts();
  if (!json) print_header();
  std::size_t wrong = 0;
  for (const int rank_count : ranks)
    for (const std::size_t count : counts) {
      double limit_bandwidth = 0;
      if (limit && rank_count == 2) {
        const AllReduceTiming least = measure_all_reduce_limit(count, options.seconds);
        limit_bandwidth = all_reduce_row("limit", "ordinary", 2, count, least)["busbw_gb_per_s"];
      }
      for (const Memory memory : {Memory::zero_copy, Memory::ordinary}) {
        nlohmann::json row =
            all_reduce_row("annulus", memory == Memory::zero_copy ? "zero-copy" : "ordinary", rank_count,
                           count, measure(memory, rank_count, count, options.seconds));
        if (limit_bandwidth > 0) {
          row["limit_gb_per_s"] = limit_bandwidth;
          row["fraction_of_limit"] = row["busbw_gb_per_s"].get<double>() / limit_bandwidth;
        }
        write_row(row, json, print_row);
        wrong += row["wrong"].get<std::size_t>();
      }
    }
  if (wrong > 0) fail<Error>("{} elements have a wrong sum; the rows above say where", wrong);
  return 0;
}

}  // namespace
}  // namespace annulus::bench

int main(int argc, char** argv) {
  return annulus::bench::run_program("bench_all_reduce", annulus::bench::run, argc, argv);
}
