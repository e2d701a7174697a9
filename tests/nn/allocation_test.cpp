// In steady state a training step takes nothing from the heap: not in layers, kernels or their libraries.
#include <gtest/gtest.h>

#include "core/nn/training_step.h"
#include "tests/nn/test_data.h"
#include "tests/support/allocation_counter.h"

namespace annulus {
namespace {

void check(const std::string& spec, const InputShape& input, const OptimizerOptions& options) {
  SCOPED_TRACE(spec);
  test::TestImages images(input, 48, 10);
  Model model(spec, input);
  model.initialise(1);
  const auto optimizer = Optimizer::make(options, model.arena());
  IdentitySynchronizer synchronizer;
  TrainingStep step(model, *optimizer, synchronizer, {.label_smoothing = 0.1f, .clip_norm = 1});
  const auto full = images.cut(0, 32, 4, 0, 4);
  const auto ragged = images.cut(32, 35, 4, 0, 4);  // micro-batches of 0 and 1
  const MicroBatch evaluation = images.micro_batch(0, 48);
  const auto one_of_each = [&](std::uint64_t s) {
    step.run(full, 0.01f, 0, 2 * s);
    step.run(ragged, 0.01f, 0, 2 * s + 1);
    step.evaluate(evaluation);
  };
  one_of_each(0);
  const std::size_t before = test::allocation_count;
  for (std::uint64_t s = 1; s < 4; ++s) one_of_each(s);
  EXPECT_EQ(test::allocation_count - before, 0u);
}

TEST(Allocation, none_in_steady_state) {
  if (!test::kCountsAllocations) GTEST_SKIP() << "the sanitizer has its own allocator";
  check(expand_model("mlp", 10), {28, 28, 1}, {.momentum = 0.9f});
  check(expand_model("cnn", 10), {28, 28, 1}, {.kind = OptimizerKind::adamw});
  check(
      "conv2d(8,3,pad=1) batch_norm relu residual[ conv2d(8,3,pad=1) batch_norm dropout(0.1) ] relu "
      "global_average_pool linear(10)",
      {16, 16, 3}, {.momentum = 0.9f, .nesterov = true});
}

}  // namespace
}  // namespace annulus
