// Ranks as threads whose gradients are summed in memory, in the tree over ranks that every ordered
// all-reduce follows. Stands in for a communicator, so that these tests need none.
#pragma once

#include <barrier>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "core/base/gradient_synchronizer.h"
#include "core/base/tensor.h"

namespace annulus::test {

class SimulatedRanks {
 public:
  explicit SimulatedRanks(std::size_t ranks) : barrier_(static_cast<std::ptrdiff_t>(ranks)), arenas_(ranks) {}

  /// Runs `body(rank)` on one thread per rank; rethrows the first rank's exception.
  void run(const std::function<void(std::size_t)>& body) {
    std::vector<std::exception_ptr> errors(arenas_.size());
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < arenas_.size(); ++rank)
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (...) {
          errors[rank] = std::current_exception();
          barrier_.arrive_and_drop();
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
  }

  /// The synchronizer of one rank; `gradients` is its arena's.
  std::unique_ptr<GradientSynchronizer> synchronizer(std::size_t rank, const Tensor& gradients) {
    return std::make_unique<Synchronizer>(*this, rank, gradients);
  }

 private:
  class Synchronizer final : public GradientSynchronizer {
   public:
    Synchronizer(SimulatedRanks& ranks, std::size_t rank, const Tensor& gradients)
        : ranks_(ranks), rank_(rank), gradients_(gradients) {}

    void add(ElementRange range, StreamView) override {
      require<Error>(range.begin == announced_, "range begins at {}, expected {}", range.begin, announced_);
      announced_ = range.end;
    }

    void finalize(StreamView) override {
      require<Error>(announced_ == gradients_.elements(), "{} of {} elements announced", announced_,
                     gradients_.elements());
      announced_ = 0;
      ranks_.arenas_[rank_] = gradients_.as<float>();
      ranks_.barrier_.arrive_and_wait();
      if (rank_ == 0) ranks_.sum(gradients_.elements());
      ranks_.barrier_.arrive_and_wait();
    }

   private:
    SimulatedRanks& ranks_;
    std::size_t rank_;
    Tensor gradients_;
    std::size_t announced_ = 0;
  };

  void sum(std::size_t elements) {
    const std::size_t ranks = arenas_.size();
    std::vector<float> values(ranks);
    for (std::size_t i = 0; i < elements; ++i) {
      for (std::size_t rank = 0; rank < ranks; ++rank) values[rank] = arenas_[rank][i];
      for (std::size_t width = 1; width < ranks; width *= 2)
        for (std::size_t rank = 0; rank < ranks; rank += 2 * width) values[rank] += values[rank + width];
      for (float* arena : arenas_) arena[i] = values[0];
    }
  }

  std::barrier<> barrier_;
  std::vector<float*> arenas_;
};

}  // namespace annulus::test
