// A step that is launched as a CUDA graph does what the same step does launch by launch, bit for bit. Runs on
// the virtual GPU too.
#include <gtest/gtest.h>

#include <vector>

#include "core/base/error.h"
#include "tests/nn/test_data.h"
#include "tests/nn/trainer.h"
#if ANNULUS_TESTS_ON_VIRTUAL_GPU
#include "tests/virtual_gpu/virtual_gpu.h"
#endif

namespace annulus {
namespace {

using test::TestImages;
using test::weights_of;

constexpr InputShape kInput{6, 6, 2};

/// Exchanges nothing, but does not say so: steps with it are never captured.
class SilentSynchronizer final : public GradientSynchronizer {
 public:
  void add(ElementRange, StreamView) override {}
  void finalize(StreamView) override {}
};

/// What a rank is told to do, step by step.
struct Action {
  std::size_t samples;        ///< of the global batch, in two micro-batches
  bool evaluate_all = false;  ///< afterwards, in one batch that is larger than any micro-batch
};

struct Outcome {
  std::vector<double> losses;
  std::vector<float> weights;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome train(const std::string& spec, Precision precision, const OptimizerOptions& options,
              GradientSynchronizer& synchronizer, const std::vector<Action>& actions) {
  TestImages images(kInput, 12, 4);
  Model model(spec, kInput, Device::cuda(0), {}, precision);
  model.initialise(1);
  const auto optimizer = Optimizer::make(options, model.arena());
  TrainingStep training(model, *optimizer, synchronizer,
                        {.label_smoothing = 0.1f,
                         .clip_norm = 0.5f,
                         .seed = 3,
                         .augment = {.crop_padding = 1, .horizontal_flip = true}});
  Outcome outcome;
  for (std::uint64_t step = 0; step < actions.size(); ++step) {
    const auto micro_batches = images.cut(0, actions[step].samples, 2, 0, 2);
    const float learning_rate = 0.01f * static_cast<float>(step + 1);
    const StepResult result = training.run(micro_batches, learning_rate, /*epoch=*/step / 3, step);
    EXPECT_EQ(result.samples, actions[step].samples);
    outcome.losses.push_back(result.loss_sum);
    if (actions[step].evaluate_all)
      outcome.losses.push_back(training.evaluate(images.micro_batch(0, 12)).loss_sum);
  }
  outcome.weights = weights_of(model);
  return outcome;
}

class CudaStepGraph : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << cuda_unavailable_reason();
  }

  static void expect_the_same_without_graph(const std::string& spec, Precision precision,
                                            const OptimizerOptions& options,
                                            const std::vector<Action>& actions) {
    SCOPED_TRACE(spec);
    IdentitySynchronizer alone;
    SilentSynchronizer silent;
    EXPECT_EQ(train(spec, precision, options, alone, actions),
              train(spec, precision, options, silent, actions));
  }
};

constexpr const char* kSpec =
    "conv2d(4,3,pad=1) batch_norm relu maxpool(2) conv2d(8,3) relu flatten linear(12) relu dropout(0.3) "
    "linear(4)";

TEST_F(CudaStepGraph, follows_what_changes_from_step_to_step) {
  const std::vector<Action> steps(7, {8});
  expect_the_same_without_graph(kSpec, Precision::f32, {.momentum = 0.9f}, steps);
  expect_the_same_without_graph(kSpec, Precision::f32, {.kind = OptimizerKind::adamw}, steps);
  expect_the_same_without_graph(kSpec, Precision::bf16, {.momentum = 0.9f}, steps);
}

TEST_F(CudaStepGraph, gives_way_to_batches_of_another_size) {
  expect_the_same_without_graph(kSpec, Precision::f32, {.momentum = 0.9f},
                                {{8}, {8}, {8}, {5}, {8}, {8}, {1}, {1}, {1}, {8}, {8}, {8}});
}

TEST_F(CudaStepGraph, follows_memory_that_moves) {
  expect_the_same_without_graph(kSpec, Precision::f32, {.momentum = 0.9f},
                                {{8}, {8}, {8, /*evaluate_all=*/true}, {8}, {8}, {8, true}, {8}});
}

TEST_F(CudaStepGraph, is_captured_at_the_second_step_of_a_kind) {
  IdentitySynchronizer alone;
  TestImages images(kInput, 8, 4);
  test::Trainer trainer("flatten linear(4)", kInput, {}, {}, Device::cuda(0));
  const auto micro_batches = images.cut(0, 8, 2, 0, 2);
#if ANNULUS_TESTS_ON_VIRTUAL_GPU
  const std::size_t launched = virtual_gpu::ledger(0).graph_launches;
#endif
  for (std::uint64_t step = 0; step < 4; ++step) {
    const StepTimes times = trainer.step.run(micro_batches, 0.1f, 0, step).times;
    for (const double seconds : {times.input, times.forward, times.backward, times.update})
      EXPECT_GT(seconds, 0);
    EXPECT_EQ(times.communication, 0);
  }
#if ANNULUS_TESTS_ON_VIRTUAL_GPU
  EXPECT_EQ(virtual_gpu::ledger(0).graph_launches - launched, 3u);
#endif
}

}  // namespace
}  // namespace annulus
