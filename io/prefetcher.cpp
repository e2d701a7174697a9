#include "io/prefetcher.h"

#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "io/batch_memory.h"

namespace annulus {
namespace {

// One step in the trainer's hands, one ready and one being read.
constexpr std::size_t kSlots = 3;

/// Checks a starting cursor; one at the end of an epoch becomes the start of the next.
Cursor normalised(const Sampler& sampler, Cursor start) {
  require<ConfigError>(
      start.step <= sampler.steps_per_epoch(),
      "cannot start at step {} of an epoch of {} steps; the dataset or the batch size is not that "
      "of the run that is resumed",
      start.step, sampler.steps_per_epoch());
  return start.step == sampler.steps_per_epoch() ? Cursor{start.epoch + 1, 0} : start;
}

}  // namespace

class Prefetcher::Implementation {
 public:
  Implementation(const Dataset& dataset, const Sampler& sampler, SampleRange owned, Cursor start,
                 Device device)
      : dataset_(dataset), sampler_(sampler), owned_(owned), cursor_(start) {
    for (std::optional<Slot>& slot : slots_)
      slot.emplace(Slot{BatchMemory(dataset, owned.size(), sampler.max_micro_batch_size(), device),
                        std::vector<MicroBatch>(owned.size())});
    // The page-locked memory was made above: the thread itself makes no CUDA call.
    thread_ = std::thread([this, start] { produce(start); });
  }

  ~Implementation() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    slot_freed_.notify_one();
    thread_.join();
  }

  Cursor cursor() const { return cursor_; }

  std::span<const MicroBatch> next() {
    std::unique_lock lock(mutex_);
    if (holding_) {
      holding_ = false;
      ++consumed_;
      slot_freed_.notify_one();
    }
    slot_filled_.wait(lock, [this] { return produced_ > consumed_ || error_; });
    if (produced_ == consumed_) std::rethrow_exception(error_);
    holding_ = true;
    cursor_ = sampler_.next(cursor_);
    return slots_[consumed_ % kSlots]->micro_batches;
  }

 private:
  struct Slot {
    BatchMemory memory;
    std::vector<MicroBatch> micro_batches;
  };

  /// The thread: reads step after step until it is told to stop or the dataset throws.
  void produce(Cursor cursor) noexcept {
    try {
      std::optional<std::uint64_t> shuffled_epoch;
      for (; wait_for_free_slot(); cursor = sampler_.next(cursor)) {
        if (shuffled_epoch != cursor.epoch) sampler_.shuffle(cursor.epoch, order_);
        shuffled_epoch = cursor.epoch;
        // Only this thread changes produced_, so it may read it unlocked.
        if (!fill(*slots_[produced_ % kSlots], cursor.step)) return;
        const std::lock_guard lock(mutex_);
        ++produced_;
        slot_filled_.notify_one();
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      slot_filled_.notify_one();
    }
  }

  /// False when it is time to stop.
  bool wait_for_free_slot() {
    std::unique_lock lock(mutex_);
    slot_freed_.wait(lock, [this] { return stop_ || produced_ - consumed_ < kSlots; });
    return !stop_;
  }

  /// Reads this rank's micro-batches of a step; false if it was told to stop meanwhile.
  bool fill(Slot& slot, std::size_t step) {
    const std::size_t batch_begin = sampler_.batch(step).begin;
    for (std::size_t i = 0; i < owned_.size(); ++i) {
      const SampleRange positions = sampler_.micro_batch(step, owned_.begin + i);
      slot.micro_batches[i] = slot.memory.view(i, positions.size(), positions.begin - batch_begin);
      for (std::size_t p = 0; p < positions.size(); ++p) {
        if (stop_) return false;
        read_sample(dataset_, order_[positions.begin + p], slot.micro_batches[i], p);
      }
    }
    return true;
  }

  const Dataset& dataset_;
  const Sampler sampler_;
  const SampleRange owned_;  // this rank's micro-batches of every step
  Cursor cursor_;            // the caller's
  bool holding_ = false;     // whether the caller has the slot of step `consumed_`

  std::array<std::optional<Slot>, kSlots> slots_;
  std::vector<std::uint32_t> order_;  // the thread's

  std::mutex mutex_;
  std::condition_variable slot_filled_, slot_freed_;
  std::uint64_t produced_ = 0;  // steps read so far
  std::uint64_t consumed_ = 0;  // steps that the caller is done with
  std::exception_ptr error_;
  std::atomic<bool> stop_ = false;  // also looked at unlocked, between two samples
  std::thread thread_;
};

Prefetcher::Prefetcher(const Dataset& dataset, const Sampler& sampler, int rank, int world_size, Cursor start,
                       Device device) {
  const std::size_t micro_batches = sampler.options().micro_batches;
  check_world_size(micro_batches, world_size);
  implementation_ =
      std::make_unique<Implementation>(dataset, sampler, rank_micro_batches(micro_batches, rank, world_size),
                                       normalised(sampler, start), device);
}

Prefetcher::~Prefetcher() = default;

Cursor Prefetcher::cursor() const { return implementation_->cursor(); }

std::span<const MicroBatch> Prefetcher::next() { return implementation_->next(); }

}  // namespace annulus
