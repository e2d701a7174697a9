// A model with its optimizer and training step on one rank, for tests.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/nn/training_step.h"

namespace annulus::test {

inline std::vector<float> weights_of(const Model& model) {
  const Tensor weights = model.arena().weights();
  std::vector<float> host(weights.elements());
  const StreamView stream(model.device(), nullptr);
  copy_bytes(stream, host.data(), weights.data(), weights.bytes());
  stream.synchronize();
  return host;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// A model, its optimizer and its step on one rank.
struct Trainer {
  Trainer(const std::string& spec, InputShape input, const TrainingOptions& training = {},
          const OptimizerOptions& options = {}, Device device = Device::cpu())
      : model(spec, input, device),
        optimizer(Optimizer::make(options, model.arena())),
        step(model, *optimizer, synchronizer, training) {
    model.initialise(1);
  }

  /// On the CPU.
  float* weights(const char* name) { return model.arena().weights(model.arena().find(name)).as<float>(); }

  Model model;
  std::unique_ptr<Optimizer> optimizer;
  IdentitySynchronizer synchronizer;
  TrainingStep step;
};

}  // namespace annulus::test
