#include "core/nn/tiled_sequence.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/nn/test_data.h"
#include "tests/nn/trainer.h"

namespace annulus {
namespace {

Tiling tiling(const std::string& spec, std::size_t batch, Device device = Device::cpu()) {
  return choose_tiling(resolve_layers(parse_model_spec(expand_model(spec, 10)), {28, 28, 1}), batch, device);
}

TEST(Tiling, takes_the_layers_up_to_the_first_that_mixes_samples_or_is_small) {
  EXPECT_EQ(tiling("cnn", 64).layers, 6u);
  EXPECT_EQ(tiling("cnn", 64).tiles, 8u);
  EXPECT_EQ(tiling("conv2d(32,3) batch_norm relu flatten linear(10)", 64).layers, 1u);
}

TEST(Tiling, leaves_alone_what_would_not_gain) {
  EXPECT_EQ(tiling("mlp", 256).layers, 0u);
  EXPECT_EQ(tiling("cnn", 8).layers, 0u) << "fits the cache";
  EXPECT_EQ(tiling("cnn", 61).layers, 0u) << "has no divisor of a good size";
  EXPECT_EQ(tiling("cnn", 64, Device::cuda(0)).layers, 0u) << "no such cache";
}

// Micro-batches of 8 are not tiled, one of 64 is: the sums of gradients differ in their order only, and
// dropout is keyed by the sample.
TEST(TiledSequence, trains_like_the_batch_in_one_piece) {
  constexpr InputShape input{28, 28, 1};
  const std::string spec =
      "conv2d(32,3,pad=1) relu maxpool(2) dropout(0.3) conv2d(8,3,pad=1) relu flatten linear(10)";
  ASSERT_GT(tiling(spec, 64).tiles, 1u);
  ASSERT_EQ(tiling(spec, 8).tiles, 1u);
  test::TestImages images(input, 64, 10);
  test::Trainer tiled(spec, input, {}, {.momentum = 0.9f}), whole(spec, input, {}, {.momentum = 0.9f});
  for (std::uint64_t step = 0; step < 3; ++step) {
    const StepResult a = tiled.step.run(images.cut(0, 64, 1, 0, 1), 0.01f, 0, step);
    const StepResult b = whole.step.run(images.cut(0, 64, 8, 0, 8), 0.01f, 0, step);
    EXPECT_EQ(a.hits, b.hits);
    EXPECT_NEAR(a.loss_sum, b.loss_sum, 1e-5 * b.loss_sum);
  }
  const std::vector<float> a = test::weights_of(tiled.model), b = test::weights_of(whole.model);
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-5) << "weight " << i;
}

}  // namespace
}  // namespace annulus
