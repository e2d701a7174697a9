#include "io/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/philox.h"

namespace annulus {
namespace {

/// What batch sizes, and what numbers of micro-batches, would do instead.
std::string suggest_sizes(const SamplerOptions& options) {
  constexpr std::size_t kMostSuggested = 64;
  std::vector<std::size_t> divisors;
  for (std::size_t d = 1; d <= std::min(options.batch_size, kMostSuggested); ++d)
    if (options.batch_size % d == 0) divisors.push_back(d);
  const std::size_t below = options.batch_size / options.micro_batches * options.micro_batches;
  return fmt::format("use a batch size of {}{}, or a number of micro-batches that divides {}: {}{}",
                     below == 0 ? "" : fmt::format("{} or ", below), below + options.micro_batches,
                     options.batch_size, fmt::join(divisors, ", "),
                     options.batch_size > kMostSuggested ? ", ..." : "");
}

/// Part `index` of `parts` nearly equal parts of [0, total).
SampleRange part_of(std::size_t total, std::size_t index, std::size_t parts) {
  return {index * total / parts, (index + 1) * total / parts};
}

bool fits(std::size_t micro_batches, std::size_t world_size) {
  return world_size == 1 ||
         (micro_batches % world_size == 0 && std::has_single_bit(micro_batches / world_size));
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  constexpr std::size_t kMost = std::numeric_limits<std::uint32_t>::max();
  require<ConfigError>(options.dataset_size > 0 && options.dataset_size <= kMost,
                       "a dataset of {} samples cannot be sampled: expected 1 to {}", options.dataset_size,
                       kMost);
  require<ConfigError>(options.batch_size > 0 && options.batch_size <= kMost && options.micro_batches > 0,
                       "a batch size of {} in {} micro-batches: a batch has 1 to {} samples and at least one "
                       "micro-batch",
                       options.batch_size, options.micro_batches, kMost);
  if (options.batch_size % options.micro_batches != 0)
    fail<ConfigError>("a batch size of {} does not divide into {} equal micro-batches; {}",
                      options.batch_size, options.micro_batches, suggest_sizes(options));
  const std::size_t partial = options.drop_last ? 0 : options.batch_size - 1;
  steps_per_epoch_ = (options.dataset_size + partial) / options.batch_size;
  require<ConfigError>(
      steps_per_epoch_ > 0,
      "a batch size of {} and only {} samples leave no full batch, and the last one is dropped; use "
      "a batch size of at most {}, or keep the last batch",
      options.batch_size, options.dataset_size, options.dataset_size);
}

std::size_t Sampler::max_micro_batch_size() const {
  const std::size_t largest_batch = std::min(options_.batch_size, options_.dataset_size);
  return (largest_batch + options_.micro_batches - 1) / options_.micro_batches;
}

SampleRange Sampler::batch(std::size_t step) const {
  const std::size_t begin = step * options_.batch_size;
  return {begin, std::min(begin + options_.batch_size, options_.dataset_size)};
}

SampleRange Sampler::micro_batch(std::size_t step, std::size_t index) const {
  const SampleRange global = batch(step);
  const SampleRange part = part_of(global.size(), index, options_.micro_batches);
  return {global.begin + part.begin, global.begin + part.end};
}

void Sampler::shuffle(std::uint64_t epoch, std::vector<std::uint32_t>& order) const {
  order.resize(options_.dataset_size);
  std::iota(order.begin(), order.end(), std::uint32_t{0});
  // Fisher-Yates: position i swaps with one of [0, i], drawn by word i of the epoch's sequence.
  const Philox philox(options_.seed, RandomPurpose::shuffle, epoch);
  for (std::size_t i = order.size() - 1; i > 0; --i)
    std::swap(order[i], order[philox.below(i, static_cast<std::uint32_t>(i + 1))]);
}

Cursor Sampler::next(Cursor cursor) const {
  if (cursor.step + 1 < steps_per_epoch_) return {cursor.epoch, cursor.step + 1};
  return {cursor.epoch + 1, 0};
}

std::vector<std::size_t> fitting_world_sizes(std::size_t micro_batches) {
  std::vector<std::size_t> sizes;
  for (std::size_t size = micro_batches; size > 1; size /= 2) {
    sizes.insert(sizes.begin(), size);
    if (size % 2 != 0) break;
  }
  sizes.insert(sizes.begin(), 1);
  return sizes;
}

void check_world_size(std::size_t micro_batches, int world_size) {
  require<ConfigError>(micro_batches > 0 && world_size > 0,
                       "{} micro-batches on {} ranks: both must be at least 1", micro_batches, world_size);
  if (!fits(micro_batches, static_cast<std::size_t>(world_size)))
    fail<ConfigError>(
        "{} micro-batches do not fit {} ranks: every rank must own the same power of two of them, so that "
        "the sums have the same bits on any number of ranks; use one of these numbers of ranks: {}",
        micro_batches, world_size, fmt::join(fitting_world_sizes(micro_batches), ", "));
}

SampleRange rank_micro_batches(std::size_t micro_batches, int rank, int world_size) {
  return part_of(micro_batches, static_cast<std::size_t>(rank), static_cast<std::size_t>(world_size));
}

SampleRange evaluation_share(std::size_t dataset_size, int rank, int world_size) {
  return part_of(dataset_size, static_cast<std::size_t>(rank), static_cast<std::size_t>(world_size));
}

}  // namespace annulus
