// The bits of training are those of the run, whatever the number of ranks that share its micro-batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/nn/training_step.h"
#include "tests/nn/simulated_ranks.h"
#include "tests/nn/test_data.h"
#include "tests/nn/trainer.h"

namespace annulus {
namespace {

using test::same_bits;
using test::SimulatedRanks;
using test::TestImages;
using test::weights_of;

struct TrainingRun {
  std::string spec;
  InputShape input;
  std::size_t micro_batches = 8;
  std::size_t batch = 20;  // samples of a global batch: micro-batches of 2 and 3
  OptimizerOptions optimizer;
  TrainingOptions options;
};

struct Outcome {
  std::vector<float> weights;
  std::vector<double> losses;
};

/// Trains for a few steps; the last batch is ragged, smaller than the number of micro-batches.
Outcome train(const TrainingRun& run, std::size_t ranks) {
  const std::size_t samples = 3 * run.batch + 5;
  std::vector<Outcome> outcomes(ranks);
  SimulatedRanks simulated(ranks);
  simulated.run([&](std::size_t rank) {
    TestImages images(run.input, samples, 4);
    Model model(run.spec, run.input);
    model.initialise(3);
    const auto optimizer = Optimizer::make(run.optimizer, model.arena());
    const auto synchronizer = simulated.synchronizer(rank, model.arena().gradients());
    TrainingStep step(model, *optimizer, *synchronizer, run.options);
    const std::size_t mine = run.micro_batches / ranks;
    for (std::size_t s = 0; s * run.batch < samples; ++s) {
      const std::size_t end = std::min(samples, (s + 1) * run.batch);
      const auto micro_batches =
          images.cut(s * run.batch, end, run.micro_batches, rank * mine, (rank + 1) * mine);
      const StepResult result = step.run(micro_batches, 0.05f, 0, s);
      EXPECT_EQ(result.samples, end - s * run.batch);
      outcomes[rank].losses.push_back(result.loss_sum);
    }
    outcomes[rank].weights = weights_of(model);
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.losses, outcomes[0].losses);
    EXPECT_EQ(outcome.weights, outcomes[0].weights);
  }
  return outcomes[0];
}

std::vector<TrainingRun> runs() {
  const OptimizerOptions momentum{.weight_decay = 1e-4f, .momentum = 0.9f};
  const OptimizerOptions adamw{.kind = OptimizerKind::adamw, .weight_decay = 0.01f};
  return {
      {.spec = expand_model("mlp", 4), .input = {28, 28, 1}, .optimizer = momentum, .options = {}},
      {.spec = expand_model("cnn", 4),
       .input = {28, 28, 1},
       .optimizer = momentum,
       .options = {.label_smoothing = 0.1f, .clip_norm = 0.5f}},
      {.spec = expand_model("resnet", 4), .input = {16, 16, 3}, .optimizer = momentum, .options = {}},
      {.spec = "conv2d(8,3,pad=1,bias=0) batch_norm relu "
               "residual[ conv2d(12,3,stride=2,pad=1) batch_norm relu dropout(0.2) | conv2d(12,1,stride=2) ] "
               "relu "
               "global_average_pool dropout(0.5) linear(4)",
       .input = {8, 8, 3},
       .optimizer = adamw,
       .options = {.seed = 5, .augment = {.crop_padding = 1, .horizontal_flip = true}}},
  };
}

TEST(RankIndependence, ranks_do_not_change_a_bit) {
  for (const TrainingRun& run : runs()) {
    const Outcome one = train(run, 1);
    for (const std::size_t ranks : {2, 4, 8}) {
      const Outcome many = train(run, ranks);
      EXPECT_TRUE(same_bits(one.weights, many.weights)) << run.spec << " on " << ranks << " ranks";
      EXPECT_EQ(one.losses, many.losses);
    }
  }
}

}  // namespace
}  // namespace annulus
