#include "bench/all_reduce_timing.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>

#include "core/base/error.h"

namespace annulus::bench {
namespace {

using Clock = std::chrono::steady_clock;  // one clock for all processes of a host

constexpr std::size_t kWarmUp = 3;        // repetitions: first touches
constexpr std::size_t kMinimum = 5;       // repetitions that are timed
constexpr std::size_t kMaximum = 100000;  // so that the times of all ranks fit the cache

// Small integers, all sums of which f32 holds exactly for up to 180 ranks. They differ by rank, element and
// repetition: a rank that is left out or counted twice, a misplaced line and a result of the last repetition
// are all wrong.
float pattern(std::size_t element, std::size_t repetition) {
  const auto sum = static_cast<std::uint32_t>(element) + static_cast<std::uint32_t>(repetition);
  return static_cast<float>(static_cast<std::int32_t>(sum % 1024));
}

void fill(float* data, std::size_t count, int rank, std::size_t repetition) {
  const auto weight = static_cast<float>(rank + 1);
  for (std::size_t i = 0; i < count; ++i) data[i] = weight * pattern(i, repetition);
}

std::size_t count_wrong(const float* data, std::size_t count, int ranks, std::size_t repetition) {
  const auto weights = static_cast<float>(ranks * (ranks + 1) / 2);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) wrong += data[i] != weights * pattern(i, repetition);
  return wrong;
}

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

/// What some repetitions gave, the same on every rank.
struct Repetitions {
  std::vector<std::int64_t> times;  // of each repetition, in ns
  std::int64_t elapsed = 0;         // ns for all, with writing and checking; of the slowest rank
  std::int64_t wrong = 0;
};

Repetitions repeat(const AllReduceRank& rank, float* data, std::size_t count, std::size_t repetitions) {
  const std::size_t record = 2 + 2 * repetitions;  // elapsed, wrong, then start and end of each repetition
  std::vector<std::int64_t> own(record), all(static_cast<std::size_t>(rank.ranks) * record);
  const std::int64_t start = now();
  for (std::size_t i = 0; i < repetitions; ++i) {
    fill(data, count, rank.rank, i);
    rank.barrier();
    own[2 + 2 * i] = now();
    rank.all_reduce(data, count);
    own[3 + 2 * i] = now();
    own[1] += static_cast<std::int64_t>(count_wrong(data, count, rank.ranks, i));
  }
  own[0] = now() - start;
  rank.all_gather(own.data(), all.data(), record);

  Repetitions result;
  result.times.resize(repetitions);
  for (std::size_t i = 0; i < repetitions; ++i) {
    std::int64_t last_call = 0, last_return = 0;
    for (std::size_t at = 0; at < all.size(); at += record) {
      last_call = std::max(last_call, all[at + 2 + 2 * i]);
      last_return = std::max(last_return, all[at + 3 + 2 * i]);
    }
    result.times[i] = last_return - last_call;
  }
  for (std::size_t at = 0; at < all.size(); at += record) {
    result.elapsed = std::max(result.elapsed, all[at]);
    result.wrong += all[at + 1];
  }
  return result;
}

}  // namespace

void AllReduceOptions::add_to(CLI::App& app) {
  const auto add_size = [&app](const char* name, std::size_t& value, const char* help) {
    app.add_option(name, value, help)->transform(CLI::AsSizeValue(false))->capture_default_str();
  };
  add_size("--min-bytes", min_bytes, "smallest size, for instance 1024 or 1K");
  add_size("--max-bytes", max_bytes, "largest size, for instance 256M");
  app.add_option("--factor", factor, "from one size to the next")->capture_default_str();
  app.add_option("--seconds", seconds, "measured per size")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

std::vector<std::size_t> AllReduceOptions::counts() const {
  require<ConfigError>(min_bytes >= sizeof(float), "--min-bytes {}: less than one f32 of {} bytes", min_bytes,
                       sizeof(float));
  require<ConfigError>(max_bytes >= min_bytes, "--max-bytes {} is less than --min-bytes {}", max_bytes,
                       min_bytes);
  require<ConfigError>(factor >= 2, "--factor {}: the sizes do not grow; 2 is the least", factor);
  std::vector<std::size_t> counts;
  for (std::size_t bytes = min_bytes; bytes <= max_bytes; bytes *= factor) {
    counts.push_back(bytes / sizeof(float));
    if (bytes > max_bytes / factor) break;
  }
  return counts;
}

AllReduceTiming time_all_reduce(const AllReduceRank& rank, float* data, std::size_t count, double seconds) {
  std::size_t repetitions = kWarmUp;
  std::int64_t wrong = 0;
  for (const double share :
       {0.25, 1.0}) {  // the better known the speed, the better the number of repetitions
    const Repetitions warm_up = repeat(rank, data, count, repetitions);
    const double each = 1e-9 * static_cast<double>(warm_up.elapsed) / static_cast<double>(repetitions);
    repetitions = std::clamp(static_cast<std::size_t>(share * seconds / each), kMinimum, kMaximum);
    wrong += warm_up.wrong;
  }
  Repetitions timed = repeat(rank, data, count, repetitions);
  const auto median = timed.times.begin() + static_cast<std::ptrdiff_t>(repetitions / 2);
  std::nth_element(timed.times.begin(), median, timed.times.end());
  return {repetitions, 1e-9 * static_cast<double>(*median), static_cast<std::size_t>(wrong + timed.wrong)};
}

nlohmann::json all_reduce_row(const std::string& engine, const std::string& memory, int ranks,
                              std::size_t count, const AllReduceTiming& timing) {
  const std::size_t bytes = count * sizeof(float);
  const double bandwidth = 1e-9 * static_cast<double>(bytes) / timing.seconds;
  return {{"engine", engine},
          {"memory", memory},
          {"ranks", ranks},
          {"size", bytes},
          {"count", count},
          {"type", "float"},
          {"redop", "sum"},
          {"repetitions", timing.repetitions},
          {"time_us", 1e6 * timing.seconds},
          {"algbw_gb_per_s", bandwidth},
          {"busbw_gb_per_s", bandwidth * 2 * (ranks - 1) / ranks},
          {"wrong", timing.wrong}};
}

}  // namespace annulus::bench
