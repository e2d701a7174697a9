#include "io/evaluation_loader.h"

#include <algorithm>

#include "core/base/error.h"

namespace annulus {

EvaluationLoader::EvaluationLoader(const Dataset& dataset, int rank, int world_size, std::size_t max_samples,
                                   Device device)
    : dataset_(dataset),
      share_(evaluation_share(dataset.size(), rank, world_size)),
      max_samples_(max_samples),
      memory_(dataset, 1, std::min(max_samples, share_.size()), device) {
  require<ConfigError>(max_samples > 0, "evaluation batches of 0 samples: use at least 1");
}

MicroBatch EvaluationLoader::read(std::size_t index) const {
  const std::size_t done = index * max_samples_;
  const MicroBatch batch = memory_.view(0, std::min(max_samples_, share_.size() - done), done);
  for (std::size_t i = 0; i < batch.samples(); ++i) read_sample(dataset_, share_.begin + done + i, batch, i);
  return batch;
}

}  // namespace annulus
