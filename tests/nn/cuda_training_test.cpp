// Training on a CUDA device does what it does on the CPU, up to rounding. Runs on the virtual GPU too, which
// finds host code in device memory and missing synchronisation.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/base/error.h"
#include "tests/nn/test_data.h"
#include "tests/nn/trainer.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

using test::TestImages;
using test::Trainer;
using test::weights_of;

class CudaTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << cuda_unavailable_reason();
  }
};

struct Case {
  const char* spec;
  InputShape input;
  OptimizerOptions optimizer;
  TrainingOptions options;
};

TEST_F(CudaTraining, follows_the_cpu) {
  const Case cases[] = {
      {"flatten linear(12) relu linear(4)", {5, 5, 1}, {.momentum = 0.9f}, {.label_smoothing = 0.1f}},
      {"conv2d(4,3,pad=1) relu maxpool(2) conv2d(4,3) relu flatten linear(4)",
       {6, 6, 1},
       {.kind = OptimizerKind::adamw},
       {.clip_norm = 0.1f}},
      {"conv2d(4,3,pad=1,bias=0) batch_norm relu residual[ conv2d(6,3,stride=2) batch_norm | "
       "conv2d(6,3,stride=2) ] "
       "relu dropout(0.2) global_average_pool linear(4)",
       {6, 6, 2},
       {.weight_decay = 0.01f, .momentum = 0.9f, .nesterov = true},
       {.seed = 3, .augment = {.mean = {0.5f, 0.5f}, .crop_padding = 1, .horizontal_flip = true}}},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.spec);
    TestImages images(test.input, 11, 4);
    Trainer cpu(test.spec, test.input, test.options, test.optimizer);
    Trainer cuda(test.spec, test.input, test.options, test.optimizer, Device::cuda(0));
    EXPECT_EQ(weights_of(cpu.model), weights_of(cuda.model));
    for (std::uint64_t step = 0; step < 3; ++step) {
      // Four micro-batches of 2 samples, then four of which one is empty.
      const auto micro_batches = step == 2 ? images.cut(8, 11, 4, 0, 4) : images.cut(0, 8, 4, 0, 4);
      const StepResult expected = cpu.step.run(micro_batches, 0.01f, 0, step);
      const StepResult found = cuda.step.run(micro_batches, 0.01f, 0, step);
      EXPECT_EQ(found.samples, expected.samples);
      EXPECT_EQ(found.hits, expected.hits);
      EXPECT_NEAR(found.loss_sum, expected.loss_sum, 1e-4 * expected.loss_sum);
      EXPECT_GT(found.times.backward, 0);
    }
    const StepResult expected = cpu.step.evaluate(images.micro_batch(0, 11));
    EXPECT_NEAR(cuda.step.evaluate(images.micro_batch(0, 11)).loss_sum, expected.loss_sum,
                1e-4 * expected.loss_sum);
    const std::vector<float> a = weights_of(cpu.model), b = weights_of(cuda.model);
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-4) << "element " << i;
  }
}

TEST_F(CudaTraining, names_the_layer_of_a_value_that_is_not_finite) {
  const InputShape input{5, 5, 1};
  TestImages images(input, 4, 4);
  Trainer cuda("flatten linear(8) relu linear(4)", input, {}, {}, Device::cuda(0));
  const Tensor bias = cuda.model.arena().weights(cuda.model.arena().find("3.bias"));
  const float nan = NAN;
  const StreamView stream(cuda.model.device(), nullptr);
  copy_bytes(stream, bias.data(), &nan, sizeof(nan));
  stream.synchronize();
  test::expect_error<NonFiniteError>([&] { cuda.step.run(images.cut(0, 4, 2, 0, 2), 0.1f, 0, 7); },
                                     {"step 8: the loss is nan", "the weights of layer 3 linear(4)"});
}

}  // namespace
}  // namespace annulus
