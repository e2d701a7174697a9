// Every layer, alone and in the company that changes how it is computed, against a model in double: logits,
// and the gradients of all parameters by central differences. A convolution or linear layer in front makes
// the tested layer's input gradient visible in that layer's parameters.
#include <gtest/gtest.h>

#include "core/base/philox.h"
#include "core/nn/model.h"
#include "core/nn/network.h"
#include "kernels/softmax_cross_entropy.h"
#include "tests/nn/reference_model.h"
#include "tests/support/finite_difference.h"

namespace annulus {
namespace {

struct Case {
  const char* spec;
  InputShape input = {6, 5, 2};
};

// Rounding of f32 through a few layers, relative to the largest gradient of the tensor: eps = 1.2e-7 times
// the number of terms in the longest sums, about 100, with room.
constexpr double kTolerance = 3e-5;

constexpr std::size_t kBatch = 4;
constexpr float kSmoothing = 0.1f;

class PlannedModel {
 public:
  explicit PlannedModel(const Case& test)
      : model_(test.spec, test.input), network_(model_.network(kBatch)), input_(network_.input().elements()) {
    model_.initialise(11);
    // BatchNorm's scale, shift and running moments start as 0 and 1, which would hide mistakes.
    const Philox random(3, RandomPurpose::synthetic);
    float* weights = model_.arena().weights().as<float>();
    for (const ArenaSlice& slice : model_.arena().slices())
      if (slice.initial.uniform_bound == 0)
        for (std::size_t i = slice.range.begin; i < slice.range.end; ++i)
          weights[i] += 0.5f * random.uniform(i);
    for (std::size_t i = 0; i < input_.size(); ++i)
      input_[i] = 2 * double{Philox(4, RandomPurpose::synthetic).uniform(i)} - 1;
    labels_.resize(kBatch);
    for (std::size_t b = 0; b < kBatch; ++b) labels_[b] = static_cast<std::int32_t>(b % model_.classes());
  }

  const Model& model() const { return model_; }
  std::span<const std::int32_t> labels() const { return labels_; }
  std::vector<double>& input() { return input_; }
  kernels::DropoutKey dropout() const { return {.seed = 9, .values = &values_, .first_sample = 3}; }

  std::vector<float> forward(bool training) {
    std::copy(input_.begin(), input_.end(), network_.input().as<float>());
    pass_ = std::make_unique<Pass>(network_.pass(StreamView()));
    pass_->training = training;
    pass_->dropout = dropout();
    pass_->gradients = model_.arena().gradients().as<float>();
    network_.forward(*pass_);
    const Tensor logits = network_.logits();
    return {logits.as<float>(), logits.as<float>() + logits.elements()};
  }

  /// After forward in training.
  void backward() {
    kernels::softmax_cross_entropy(StreamView(), network_.logits(),
                                   Tensor(labels_.data(), {kBatch}, DType::i32), kSmoothing,
                                   network_.loss_workspace(), network_.logits_gradient(),
                                   model_.arena().gradients(model_.arena().statistics()));
    network_.backward(*pass_);
  }

  std::span<const float> gradient(const ArenaSlice& slice) const {
    return {model_.arena().gradients(slice).as<float>(), slice.range.size()};
  }

 private:
  StepValues values_{.step = 2};
  Model model_;
  Network& network_;
  std::unique_ptr<Pass> pass_;
  std::vector<double> input_;
  std::vector<std::int32_t> labels_;
};

void check(const Case& test) {
  SCOPED_TRACE(test.spec);
  PlannedModel planned(test);
  test::ReferenceModel reference(planned.model(), kBatch, planned.dropout());
  test::expect_close(planned.forward(true), reference.logits(planned.input()), kTolerance, "logits");

  planned.backward();
  const auto loss = [&] { return reference.loss(planned.input(), planned.labels(), kSmoothing); };
  const ParameterArena& arena = planned.model().arena();
  EXPECT_NEAR(arena.gradients().as<float>()[0], loss(), kTolerance * loss());
  for (const ArenaSlice& slice : arena.slices())
    if (slice.role == ArenaSlice::Role::parameter)
      test::expect_close(planned.gradient(slice), test::central_differences(loss, reference.weights(slice)),
                         kTolerance, slice.name);

  // A second pass over the same memory gives the same bits: nothing depends on what was left there.
  const auto gradients = [&] {
    const Tensor all = arena.gradients();
    return std::vector<float>(all.as<float>(), all.as<float>() + all.elements());
  };
  const std::vector<float> first = gradients();
  planned.forward(true);
  planned.backward();
  EXPECT_EQ(gradients(), first);

  test::ReferenceModel inference(planned.model(), kBatch, planned.dropout(), false);
  test::expect_close(planned.forward(false), inference.logits(planned.input()), kTolerance, "inference");
}

TEST(Layers, linear) {
  check({"flatten linear(5)"});
  check({"flatten linear(5,bias=0)"});
  check({"flatten linear(7) relu linear(6) relu linear(5)"});
  check({"flatten linear(7) relu linear(5) relu", {1, 1, 3}});
}

TEST(Layers, conv2d) {
  check({"conv2d(3,3) conv2d(2,3,pad=1) flatten linear(4)"});
  check({"conv2d(3,3,pad=1) relu conv2d(2,3,stride=2,pad=1) relu flatten linear(4)"});
  check({"conv2d(4,2,stride=2,bias=0) conv2d(2,1) flatten linear(4)"});
  check({"conv2d(2,5,pad=2) conv2d(3,3,stride=3) flatten linear(3)"});
  check({"conv2d(8,3,pad=1) relu conv2d(8,3,pad=1) relu global_average_pool linear(3)", {4, 4, 1}});
}

TEST(Layers, relu) {
  check({"relu conv2d(2,1) relu relu flatten relu linear(4)"});
  check({"conv2d(2,1) flatten linear(6) relu linear(4) relu"});
  check({"conv2d(2,3) dropout(0.1) relu flatten linear(4)"});
}

TEST(Layers, max_pool2d) {
  check({"conv2d(3,1) maxpool(2) flatten linear(4)"});
  check({"conv2d(3,1) relu maxpool(2) flatten linear(4)"});
  check({"conv2d(3,1) relu maxpool(3,stride=1) relu flatten linear(4)"});
  check({"conv2d(3,1) batch_norm relu maxpool(2) dropout(0.2) flatten linear(4)"});
  check({"conv2d(3,1) maxpool(2) maxpool(2) flatten linear(4)"});
  check({"maxpool(2) conv2d(3,1) flatten linear(4)"});
}

TEST(Layers, global_average_pool) {
  check({"conv2d(3,3,pad=1) global_average_pool linear(4)"});
  check({"conv2d(4,3,pad=1) relu global_average_pool"});
  check({"global_average_pool linear(4) linear(3)"});
}

TEST(Layers, batch_norm) {
  check({"conv2d(3,3,pad=1,bias=0) batch_norm flatten linear(4)"});
  check({"batch_norm conv2d(3,3) batch_norm relu flatten linear(4)"});
  check({"flatten linear(6) batch_norm relu linear(4) batch_norm"});
}

TEST(Layers, dropout) {
  check({"conv2d(3,3) dropout(0.3) flatten linear(4)"});
  check({"conv2d(3,3) relu dropout(0.3) flatten dropout(0.2) linear(4)"});
  check({"dropout(0.5) flatten linear(6) relu dropout(0.5) linear(4) dropout(0.1)"});
  check({"residual[ dropout(0.3) conv2d(2,1) ] flatten linear(4)"});
}

TEST(Layers, flatten) {
  check({"conv2d(3,2) flatten flatten linear(4)"});
  check({"conv2d(1,2) flatten linear(4)"});
  check({"conv2d(5,5) flatten linear(4)", {5, 5, 2}});
}

TEST(Layers, residual) {
  check({"conv2d(3,1) residual[ conv2d(3,3,pad=1) ] flatten linear(4)"});
  check({"residual[ conv2d(2,3,pad=1) relu ] relu flatten linear(4)"});
  check({"conv2d(3,1) relu residual[ conv2d(3,3,pad=1) relu conv2d(3,3,pad=1) relu ] flatten linear(4)"});
  check({"conv2d(3,1) residual[ relu conv2d(3,1) | relu maxpool(1) ] flatten linear(4)"});
  check({"conv2d(3,1) residual[ relu ] relu flatten linear(4)"});
  check({"conv2d(3,1) flatten residual[ flatten ] linear(4)"});
  check({"conv2d(3,1) flatten residual[ flatten | flatten ] linear(4)"});
  check({"conv2d(3,1) flatten residual[ flatten | relu ] linear(4)"});
  check({"conv2d(3,1) flatten residual[ relu | flatten ] linear(4)"});
  check(
      {"conv2d(3,1) residual[ residual[ conv2d(3,1) relu ] batch_norm | residual[ relu ] ] flatten "
       "linear(4)"});
  check(
      {"residual[ conv2d(3,3,pad=1,stride=2) batch_norm relu | conv2d(3,1,stride=2) batch_norm ] relu "
       "residual[ conv2d(3,3,pad=1) batch_norm relu conv2d(3,3,pad=1) batch_norm ] relu maxpool(2) "
       "global_average_pool linear(4)",
       {8, 8, 2}});
}

}  // namespace
}  // namespace annulus
