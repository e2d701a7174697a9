// Annulus inside another program: an mlp learns which quarter of an image is lit. Links annulus::core alone.
//   cmake -S examples/embed -B build/embed -DCMAKE_PREFIX_PATH=<where Annulus is installed>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "core/nn/training_step.h"

int main() {
  using namespace annulus;
  constexpr std::size_t batch = 64, side = 16;
  std::vector<std::uint8_t> images(batch * side * side);
  std::vector<std::int32_t> labels(batch);
  std::vector<std::int64_t> indices(batch);
  for (std::size_t i = 0; i < batch; ++i) {
    labels[i] = static_cast<std::int32_t>(i % 4);
    indices[i] = static_cast<std::int64_t>(i);
    for (std::size_t y = 0; y < side / 2; ++y) {
      for (std::size_t x = 0; x < side / 2; ++x) {
        const std::size_t row = y + (i % 4 / 2) * side / 2, column = x + (i % 2) * side / 2;
        images[(i * side + row) * side + column] = static_cast<std::uint8_t>(155 + i);
      }
    }
  }

  Model model(expand_model("mlp", 4), {side, side, 1});
  model.initialise(/*seed=*/1);
  OptimizerOptions sgd;
  sgd.momentum = 0.9f;
  const auto optimizer = Optimizer::make(sgd, model.arena());
  IdentitySynchronizer alone;
  TrainingStep training(model, *optimizer, alone);
  MicroBatch data;
  data.images = Tensor(images.data(), {batch, side, side, 1}, DType::u8);
  data.labels = Tensor(labels.data(), {batch}, DType::i32);
  data.sample_index = Tensor(indices.data(), {batch}, DType::i64);
  StepResult result;
  for (std::uint64_t step = 0; step < 20; ++step) result = training.run({&data, 1}, 0.05f, /*epoch=*/0, step);
  std::printf("loss %.4f, %zu of %zu right\n", result.mean_loss(), result.hits, result.samples);
  return result.hits == batch ? 0 : 1;
}
