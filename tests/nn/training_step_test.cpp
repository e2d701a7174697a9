#include "core/nn/training_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/base/error.h"
#include "tests/nn/test_data.h"
#include "tests/nn/trainer.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

using test::same_bits;
using test::TestImages;
using test::Trainer;
using test::weights_of;

TEST(TrainingStep, micro_batches_and_empty_ones_add_up_to_the_batch) {
  const InputShape input{6, 6, 1};
  TestImages images(input, 12, 4);
  const auto weights_after = [&](const std::vector<MicroBatch>& micro_batches) {
    Trainer trainer("flatten linear(8) relu linear(4)", input);
    const StepResult result = trainer.step.run(micro_batches, 0.1f, 0, 0);
    EXPECT_EQ(result.samples, 12u);
    return weights_of(trainer.model);
  };
  const std::vector<float> whole = weights_after(images.cut(0, 12, 1, 0, 1));
  for (const std::size_t micro_batches : {3, 4, 5, 40}) {
    const std::vector<float> cut = weights_after(images.cut(0, 12, micro_batches, 0, micro_batches));
    for (std::size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(whole[i], cut[i], 1e-6) << micro_batches;
  }
}

TEST(TrainingStep, loss_and_hits_are_those_of_the_batch_before_the_update) {
  const InputShape input{6, 6, 1};
  TestImages images(input, 12, 4);
  Trainer trainer("flatten linear(4)", input);
  const StepResult evaluated = trainer.step.evaluate(images.micro_batch(0, 12));
  const std::vector<float> before = weights_of(trainer.model);
  const StepResult trained = trainer.step.run(images.cut(0, 12, 1, 0, 1), 0.5f, 0, 0);
  EXPECT_EQ(trained.loss_sum, evaluated.loss_sum);
  EXPECT_EQ(trained.hits, evaluated.hits);
  EXPECT_NEAR(trained.mean_loss(), trained.loss_sum / 12, 1e-12);
  EXPECT_NE(weights_of(trainer.model), before);
  EXPECT_LT(trainer.step.evaluate(images.micro_batch(0, 12)).loss_sum, trained.loss_sum);
  EXPECT_EQ(trainer.step.evaluate(images.micro_batch(0, 0)).samples, 0u);
}

TEST(TrainingStep, evaluation_changes_nothing) {
  const InputShape input{6, 6, 1};
  TestImages images(input, 12, 4);
  const auto weights_after = [&](bool evaluate) {
    Trainer trainer("conv2d(4,3) batch_norm relu dropout(0.5) flatten linear(4)", input, {},
                    {.momentum = 0.9f});
    for (std::uint64_t step = 0; step < 3; ++step) {
      trainer.step.run(images.cut(0, 12, 2, 0, 2), 0.1f, 0, step);
      if (evaluate) trainer.step.evaluate(images.micro_batch(0, 7));
    }
    return weights_of(trainer.model);
  };
  EXPECT_TRUE(same_bits(weights_after(true), weights_after(false)));
}

TEST(TrainingStep, clipping_bounds_the_norm_of_the_averaged_gradient) {
  const InputShape input{6, 6, 1};
  TestImages images(input, 12, 4);
  const auto norm_of_update = [&](float clip_norm) {
    Trainer trainer("flatten linear(4)", input, {.clip_norm = clip_norm});
    const std::vector<float> before = weights_of(trainer.model);
    trainer.step.run(images.cut(0, 12, 3, 0, 3), 1, 0, 0);
    const std::vector<float> after = weights_of(trainer.model);
    double squared = 0;
    for (std::size_t i = 0; i < after.size(); ++i)
      squared += std::pow(double{after[i]} - double{before[i]}, 2);
    return std::sqrt(squared);
  };
  const double free = norm_of_update(0);
  EXPECT_NEAR(norm_of_update(static_cast<float>(free / 3)), free / 3, 1e-5);
  EXPECT_NEAR(norm_of_update(static_cast<float>(free * 3)), free, 1e-5);
}

TEST(TrainingStep, running_moments_fold_in_the_micro_batches_once_a_step) {
  const InputShape input{2, 2, 1};
  TestImages images(input, 5, 4);
  Trainer trainer("batch_norm flatten linear(4)", input);
  const auto micro_batches = images.cut(0, 5, 3, 0, 3);  // of 1, 2 and 2 samples
  double mean = 0, variance = 0;
  for (const MicroBatch& batch : micro_batches) {
    const auto* pixels = batch.images.as<std::uint8_t>();
    const std::size_t count = batch.images.elements();
    double sum = 0, squares = 0;
    for (std::size_t i = 0; i < count; ++i) sum += pixels[i] / 255.0;
    for (std::size_t i = 0; i < count; ++i)
      squares += std::pow(pixels[i] / 255.0 - sum / static_cast<double>(count), 2);
    const double weight = static_cast<double>(batch.samples()) / 5;
    mean += weight * sum / static_cast<double>(count);
    variance += weight * squares / static_cast<double>(count - 1);
  }
  trainer.step.run(micro_batches, 0.1f, 0, 0);
  EXPECT_NEAR(*trainer.weights("0.running_mean"), 0.1 * mean, 1e-6);
  EXPECT_NEAR(*trainer.weights("0.running_var"), 0.9 + 0.1 * variance, 1e-6);
}

TEST(TrainingStep, dropout_is_drawn_anew_in_every_step) {
  const InputShape input{6, 6, 1};
  TestImages images(input, 12, 4);
  const auto loss = [&](std::uint64_t seed, std::uint64_t step) {
    Trainer trainer("flatten dropout(0.5) linear(4)", input, {.seed = seed});
    return trainer.step.run(images.cut(0, 12, 1, 0, 1), 0.1f, 0, step).loss_sum;
  };
  EXPECT_EQ(loss(1, 1), loss(1, 1));
  EXPECT_NE(loss(1, 1), loss(1, 2));
  EXPECT_NE(loss(1, 1), loss(2, 1));
}

TEST(TrainingStep, augmentation_is_drawn_anew_in_every_epoch) {
  const InputShape input{6, 6, 1};
  TestImages images(input, 12, 4);
  const auto loss = [&](std::uint64_t epoch) {
    Trainer trainer("flatten linear(4)", input, {.augment = {.crop_padding = 2, .horizontal_flip = true}});
    return trainer.step.run(images.cut(0, 12, 1, 0, 1), 0.1f, epoch, 0).loss_sum;
  };
  EXPECT_EQ(loss(0), loss(0));
  EXPECT_NE(loss(0), loss(1));
}

TEST(TrainingStep, ranges_are_announced_on_the_last_micro_batch_only) {
  class Recorder final : public GradientSynchronizer {
   public:
    void add(ElementRange range, StreamView) override { ranges.push_back(range); }
    void finalize(StreamView) override { ++steps; }
    std::vector<ElementRange> ranges;
    int steps = 0;
  };
  const InputShape input{6, 6, 1};
  TestImages images(input, 12, 4);
  Model model("conv2d(4,3) batch_norm residual[ conv2d(4,1) ] flatten linear(4)", input);
  const auto optimizer = Optimizer::make({}, model.arena());
  // The last micro-batch may be empty: the announcements are the same.
  for (const std::vector<MicroBatch>& micro_batches :
       {images.cut(0, 12, 3, 0, 3), std::vector<MicroBatch>{images.micro_batch(0, 12), MicroBatch()}}) {
    Recorder recorder;
    TrainingStep step(model, *optimizer, recorder);
    step.run(micro_batches, 0.1f, 0, 0);
    EXPECT_EQ(recorder.steps, 1);
    ASSERT_EQ(recorder.ranges.size(), 5u);  // statistics and moments, and four layers with parameters
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(recorder.ranges[i].begin, model.gradient_ranges()[i].begin);
      EXPECT_EQ(recorder.ranges[i].end, model.gradient_ranges()[i].end);
    }
  }
}

TEST(TrainingStep, micro_batches_that_do_not_fit_are_refused) {
  Trainer trainer("flatten linear(4)", {6, 6, 1});
  TestImages wrong({5, 6, 1}, 4, 4);
  test::expect_error<ShapeError>([&] { trainer.step.run(wrong.cut(0, 4, 1, 0, 1), 0.1f, 0, 0); },
                                 {"[4, 5, 6, 1]", "[4, 6, 6, 1]"});
  test::expect_error<ShapeError>([&] { trainer.step.evaluate(wrong.micro_batch(0, 2)); }, {"[2, 5, 6, 1]"});
  test::expect_error<ShapeError>([&] { trainer.step.run({}, 0.1f, 0, 0); }, {"at least one micro-batch"});
}

TEST(TrainingStep, options_out_of_range_are_refused) {
  for (const TrainingOptions& options :
       {TrainingOptions{.label_smoothing = 1}, TrainingOptions{.label_smoothing = -0.1f},
        TrainingOptions{.clip_norm = -1}, TrainingOptions{.clip_norm = NAN}})
    test::expect_error<ConfigError>([&] { Trainer("flatten linear(4)", {6, 6, 1}, options); }, {"must be"});
}

TEST(TrainingStep, times_are_split) {
  const InputShape input{16, 16, 1};
  TestImages images(input, 12, 4);
  Trainer trainer("conv2d(4,3) relu flatten linear(4)", input);
  const StepTimes times = trainer.step.run(images.cut(0, 12, 3, 0, 3), 0.1f, 0, 0).times;
  EXPECT_GT(times.input, 0);
  EXPECT_GT(times.forward, 0);
  EXPECT_GT(times.backward, 0);
  EXPECT_GT(times.update, 0);
  EXPECT_GE(times.communication, 0);
  const StepTimes evaluation = trainer.step.evaluate(images.micro_batch(0, 12)).times;
  EXPECT_GT(evaluation.forward, 0);
  EXPECT_EQ(evaluation.backward, 0);
}

}  // namespace
}  // namespace annulus
