// How an all-reduce is timed and checked: the same for Annulus, for the machine's limit and for the peers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace annulus::bench {

/// What the bench's options choose.
struct AllReduceOptions {
  std::size_t min_bytes = std::size_t{1} << 10;
  std::size_t max_bytes = std::size_t{256} << 20;
  std::size_t factor = 4;  ///< from one size to the next
  double seconds = 0.2;    ///< about, per size

  void add_to(CLI::App& app);

  /// Elements (f32) of each size; a size that is not a multiple of 4 bytes is rounded down. Throws
  /// ConfigError.
  std::vector<std::size_t> counts() const;
};

/// One rank's access to the implementation under test.
struct AllReduceRank {
  int rank = 0;
  int ranks = 1;
  std::function<void()> barrier;
  /// In place, the sum over ranks of f32.
  std::function<void(float* data, std::size_t count)> all_reduce;
  /// receive[r * count ...] = rank r's send[0 .. count).
  std::function<void(const std::int64_t* send, std::int64_t* receive, std::size_t count)> all_gather;
};

/// The same on every rank.
struct AllReduceTiming {
  std::size_t repetitions = 0;
  double seconds = 0;     ///< of one all-reduce: the median over repetitions
  std::size_t wrong = 0;  ///< elements with a wrong sum, over all ranks and all repetitions
};

/// Times the all-reduce of `data` for about `seconds`. To be called on every rank; all are on one host, whose
/// clock they share. A repetition: every rank writes its data (as backward does), all meet in a barrier and
/// call the all-reduce, then every rank checks its result. Its time is that from the call of the last rank
/// to the return of the last rank.
AllReduceTiming time_all_reduce(const AllReduceRank& rank, float* data, std::size_t count, double seconds);

/// What METRICS.md says of one measurement.
nlohmann::json all_reduce_row(const std::string& engine, const std::string& memory, int ranks,
                              std::size_t count, const AllReduceTiming& timing);

}  // namespace annulus::bench
