// Which samples make up which micro-batch. The order of an epoch is a permutation keyed by (seed, epoch); it
// is cut into global batches and each of these into micro-batches. Nothing here depends on the world size:
// a rank merely owns a block of the micro-batches, so the same run has the same bits on any number of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace annulus {

/// The next step to train: step `step` of epoch `epoch`, both counted from 0.
struct Cursor {
  std::uint64_t epoch = 0;
  std::size_t step = 0;

  friend bool operator==(const Cursor&, const Cursor&) = default;
};

/// Positions [begin, end) of an order of samples.
struct SampleRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }

  friend bool operator==(const SampleRange&, const SampleRange&) = default;
};

struct SamplerOptions {
  std::size_t dataset_size = 0;
  std::size_t batch_size = 0;     ///< samples of a global batch
  std::size_t micro_batches = 1;  ///< S, of a global batch; divides batch_size
  std::uint64_t seed = 0;
  bool drop_last = false;  ///< leave out the last batch of an epoch if it is smaller than batch_size
};

/// The order of samples of a training run. Immutable and cheap to copy.
class Sampler {
 public:
  /// Throws ConfigError if micro_batches does not divide batch_size (and says which sizes would do), if one
  /// of them is 0, or if an epoch has no step.
  explicit Sampler(const SamplerOptions& options);

  const SamplerOptions& options() const { return options_; }
  std::size_t steps_per_epoch() const { return steps_per_epoch_; }

  /// Most samples that any micro-batch has: batch_size / micro_batches, or fewer if the dataset is smaller
  /// than a batch.
  std::size_t max_micro_batch_size() const;

  /// The positions of the samples of `step`'s global batch in the epoch's order. Only the last batch of an
  /// epoch may be smaller than batch_size.
  SampleRange batch(std::size_t step) const;

  /// The positions of the samples of micro-batch `index` of `step`'s global batch: with B samples in the
  /// batch, positions [index * B / S, (index + 1) * B / S) of it. In a small last batch, micro-batches may
  /// differ by one sample and may be empty.
  SampleRange micro_batch(std::size_t step, std::size_t index) const;

  /// Writes the order of `epoch`: order[p] is the dataset index of the sample at position p. Resizes `order`
  /// to dataset_size.
  void shuffle(std::uint64_t epoch, std::vector<std::uint32_t>& order) const;

  /// The step after `cursor`.
  Cursor next(Cursor cursor) const;

 private:
  SamplerOptions options_;
  std::size_t steps_per_epoch_ = 0;
};

/// World sizes that run S micro-batches with the same bits as one rank: 1, and every N that divides S with S
/// / N a power of two, so that each rank's block is one whole subtree of the summation tree. Ascending.
std::vector<std::size_t> fitting_world_sizes(std::size_t micro_batches);

/// Throws ConfigError that lists the world sizes that fit if `world_size` is not one of them.
void check_world_size(std::size_t micro_batches, int world_size);

/// The micro-batches that `rank` owns: [rank * S / N, (rank + 1) * S / N).
SampleRange rank_micro_batches(std::size_t micro_batches, int rank, int world_size);

/// The samples that `rank` evaluates, in dataset order: a contiguous share. The shares of all ranks cover
/// every sample exactly once and differ by at most one, so ranks may make different numbers of batches; each
/// adds up its own statistics and the sums are reduced once at the end.
SampleRange evaluation_share(std::size_t dataset_size, int rank, int world_size);

}  // namespace annulus
