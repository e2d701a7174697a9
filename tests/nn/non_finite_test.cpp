#include "core/nn/non_finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tests/nn/simulated_ranks.h"
#include "tests/nn/test_data.h"
#include "tests/nn/trainer.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

using test::same_bits;
using test::SimulatedRanks;
using test::TestImages;
using test::Trainer;
using test::weights_of;

TEST(NonFinite, a_loss_that_is_not_finite_names_the_step_and_the_first_layer) {
  const InputShape input{6, 6, 1};
  TestImages images(input, 12, 4);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct Fault {
    const char* weight;
    float value;
    std::string_view message;
  };
  for (const Fault& fault : {Fault{"0.weight", nan, "the weights of layer 0 conv2d(4,3)"},
                             Fault{"3.main.0.bias", nan, "the weights of layer 3.main.0 conv2d(4,1)"},
                             Fault{"5.weight", INFINITY, "the weights of layer 5 linear(4)"},
                             Fault{"3.main.0.bias", 3e38f, "the output of layer 5 linear(4)"}}) {
    SCOPED_TRACE(fault.message);
    Trainer trainer("conv2d(4,3) batch_norm relu residual[ conv2d(4,1) ] flatten linear(4)", input, {},
                    {.kind = OptimizerKind::adamw});
    trainer.step.run(images.cut(0, 12, 2, 0, 2), 0.01f, 0, 16);
    for (std::size_t i = 0; i < 4; ++i) trainer.weights(fault.weight)[i] = fault.value;
    if (fault.value == 3e38f)
      for (std::size_t i = 0; i < 4 * 64; ++i) trainer.weights("5.weight")[i] = i < 64 ? 4.0f : -4.0f;
    const std::vector<float> before = weights_of(trainer.model);
    test::expect_error<NonFiniteError>([&] { trainer.step.run(images.cut(0, 12, 3, 0, 3), 0.01f, 0, 17); },
                                       {"step 18: the loss is ", fault.message, "lower the learning rate"});
    EXPECT_TRUE(same_bits(weights_of(trainer.model), before));
    EXPECT_EQ(trainer.optimizer->steps(), 1);
  }

  Trainer trainer("flatten linear(4)", input, {.augment = {.inverse_std = {INFINITY}}});
  test::expect_error<NonFiniteError>([&] { trainer.step.run(images.cut(0, 12, 3, 0, 3), 0.01f, 0, 0); },
                                     {"step 1", "the input of the first layer"});
}

TEST(NonFinite, a_gradient_without_a_finite_norm_stops_a_run_that_clips) {
  const InputShape input{6, 6, 1};
  TestImages images(input, 4, 4);
  test::Trainer trainer("flatten linear(8) linear(4)", input, {.clip_norm = 1});
  // Activations of 1e21 that the next layer makes small again: the loss is finite, the squares of gradients
  // are not.
  std::fill_n(trainer.weights("1.weight"), 8 * 36, 1e20f);
  std::fill_n(trainer.weights("2.weight"), 4 * 8, 1e-22f);
  const auto before = test::weights_of(trainer.model);
  test::expect_error<NonFiniteError>(
      [&] { trainer.step.run(images.cut(0, 4, 2, 0, 2), 0.1f, 0, 2); },
      {"step 3: the norm of the gradient is infinite", "none before the loss"});
  EXPECT_TRUE(test::same_bits(test::weights_of(trainer.model), before));
  EXPECT_EQ(trainer.optimizer->steps(), 0);
}

TEST(NonFinite, every_rank_names_the_layer_that_one_rank_found) {
  constexpr std::size_t ranks = 4;
  const InputShape input{6, 6, 1};
  std::vector<std::string> messages(ranks);
  SimulatedRanks simulated(ranks);
  simulated.run([&](std::size_t rank) {
    TestImages images(input, 8, 4);
    // Only the images of rank 2 are not black; a large weight makes an infinity of them, and nothing of
    // black.
    std::vector<std::uint8_t> black(8 * 36);
    Model model("flatten linear(8) linear(4)", input);
    for (std::size_t i = 0; i < 8 * 36; ++i)
      model.arena().weights(model.arena().find("1.weight")).as<float>()[i] = 3e38f;
    const auto optimizer = Optimizer::make({}, model.arena());
    const auto synchronizer = simulated.synchronizer(rank, model.arena().gradients());
    TrainingStep step(model, *optimizer, *synchronizer);
    auto micro_batches = images.cut(0, 8, 4, rank, rank + 1);
    if (rank != 2) micro_batches[0].images = Tensor(black.data(), micro_batches[0].images.shape(), DType::u8);
    try {
      step.run(micro_batches, 0.1f, 0, 5);
    } catch (const NonFiniteError& error) {
      messages[rank] = error.what();
    }
  });
  for (const std::string& message : messages) {
    EXPECT_EQ(message, messages[0]);
    EXPECT_NE(message.find("the output of layer 1 linear(8)"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace annulus
