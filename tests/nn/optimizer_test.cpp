// Several steps of every optimizer against the formulas of torch.optim in double.
#include "core/nn/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "core/base/error.h"
#include "core/base/philox.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

// One step on the CPU.
void update(Optimizer& optimizer, float learning_rate, const kernels::GradientScaling& scaling) {
  StepValues values;
  optimizer.advance(learning_rate, values);
  optimizer.update(StreamView(), &values, scaling);
}

constexpr float kSamples = 4;
constexpr float kClipNorm = 0.7f;

ParameterArena make_arena() {
  using Role = ArenaSlice::Role;
  return ParameterArena({{.name = "weight", .shape = {9, 11}, .initial = {.uniform_bound = 0.5f}},
                         {.name = "bias", .shape = {70}, .initial = {.constant = 0.25f}},
                         {.name = "running", .shape = {5}, .role = Role::buffer, .initial = {.constant = 1}}},
                        Device::cpu());
}

/// torch.optim.SGD and AdamW for one element.
struct Reference {
  OptimizerOptions options;
  double weight = 0, momentum = 0, first = 0, second = 0;

  void update(double gradient, double rate, int step) {
    if (options.kind == OptimizerKind::sgd) {
      gradient += options.weight_decay * weight;
      momentum = options.momentum * momentum + gradient;
      weight -= rate * (options.nesterov ? gradient + options.momentum * momentum : momentum);
      return;
    }
    weight -= rate * options.weight_decay * weight;
    first = options.beta1 * first + (1 - double{options.beta1}) * gradient;
    second = options.beta2 * second + (1 - double{options.beta2}) * gradient * gradient;
    const double corrected = first / (1 - std::pow(double{options.beta1}, step));
    weight -= rate * corrected /
              (std::sqrt(second / (1 - std::pow(double{options.beta2}, step))) + double{options.epsilon});
  }
};

void check(const OptimizerOptions& options, bool clip) {
  ParameterArena arena = make_arena();
  arena.initialise(1);
  const auto optimizer = Optimizer::make(options, arena);
  float* weights = arena.weights().as<float>();
  float* gradients = arena.gradients().as<float>();
  std::vector<Reference> reference(arena.elements(), Reference{.options = options});
  for (std::size_t e = 0; e < arena.elements(); ++e) reference[e].weight = weights[e];
  gradients[2] = kSamples;
  for (int step = 1; step <= 6; ++step) {
    double squared = 0;
    const auto each_parameter = [&](const auto& visit) {
      for (const ArenaSlice& slice : arena.slices())
        if (slice.role == ArenaSlice::Role::parameter)
          for (std::size_t e = slice.range.begin; e < slice.range.end; ++e) visit(e);
    };
    each_parameter([&](std::size_t e) {
      const Philox random(2, RandomPurpose::synthetic, static_cast<std::uint64_t>(step));
      gradients[e] = random.uniform(e) - 0.4f;
      squared += double{gradients[e]} * double{gradients[e]};
    });
    gradients[arena.buffers().begin] = 1000;  // a moment, not a gradient
    const auto squared_norm = static_cast<float>(squared);
    kernels::GradientScaling scaling{.statistics = gradients, .clip_norm = kClipNorm};
    if (clip) scaling.squared_norm = &squared_norm;
    const float rate = 0.1f / static_cast<float>(step);
    update(*optimizer, rate, scaling);

    const double norm = std::sqrt(squared) / kSamples;
    const double factor = (clip ? std::min(1.0, kClipNorm / (norm + 1e-6)) : 1.0) / kSamples;
    if (clip && step == 1) {
      EXPECT_LT(factor * kSamples, 0.9) << "the test should clip";
    }
    each_parameter([&](std::size_t e) {
      reference[e].update(double{gradients[e]} * factor, rate, step);
      // f32 rounding of the weights and, for AdamW, of a quotient near 1 times the rate.
      ASSERT_NEAR(weights[e], reference[e].weight, 1e-6) << "element " << e << ", step " << step;
    });
  }
  EXPECT_EQ(optimizer->steps(), 6);
  EXPECT_EQ(weights[arena.buffers().begin], 1.0f) << "buffers are not the optimizer's";
  EXPECT_EQ(weights[arena.elements() - 1], 0.0f) << "padding stays zero";

  for (const OptimizerState& state : optimizer->states()) {
    const ArenaSlice& slice = arena.find(state.parameter);
    EXPECT_EQ(state.tensor.shape(), slice.shape);
    for (std::size_t i = 0; i < slice.range.size(); ++i) {
      const Reference& expected = reference[slice.range.begin + i];
      const std::map<std::string, double> values = {{"momentum", expected.momentum},
                                                    {"first_moment", expected.first},
                                                    {"second_moment", expected.second}};
      ASSERT_NEAR(state.tensor.as<float>()[i], values.at(state.name), 1e-6) << state.name << " " << i;
    }
  }
}

TEST(Optimizer, sgd_follows_pytorch) {
  for (const bool clip : {false, true}) {
    check({}, clip);
    check({.weight_decay = 0.01f}, clip);
    check({.weight_decay = 0.01f, .momentum = 0.9f}, clip);
    check({.weight_decay = 0.01f, .momentum = 0.9f, .nesterov = true}, clip);
  }
}

TEST(Optimizer, adamw_follows_pytorch) {
  for (const bool clip : {false, true}) {
    check({.kind = OptimizerKind::adamw}, clip);
    check({.kind = OptimizerKind::adamw, .weight_decay = 0.1f, .beta1 = 0.8f, .beta2 = 0.95f}, clip);
  }
}

TEST(Optimizer, names_one_state_per_parameter_and_kind) {
  ParameterArena arena = make_arena();
  const auto names = [&](const OptimizerOptions& options) {
    std::string text;
    for (const OptimizerState& state : Optimizer::make(options, arena)->states())
      text += state.name + ":" + state.parameter + " ";
    return text;
  };
  EXPECT_EQ(names({}), "");
  EXPECT_EQ(names({.momentum = 0.9f}), "momentum:weight momentum:bias ");
  EXPECT_EQ(names({.kind = OptimizerKind::adamw}),
            "first_moment:weight first_moment:bias second_moment:weight second_moment:bias ");
}

TEST(Optimizer, a_resumed_one_continues) {
  const OptimizerOptions options{.kind = OptimizerKind::adamw};
  const auto train = [&](Optimizer& optimizer, ParameterArena& arena, int steps) {
    float* gradients = arena.gradients().as<float>();
    gradients[2] = 1;
    for (int i = 0; i < steps; ++i) {
      for (std::size_t e = arena.find("weight").range.begin; e < arena.find("weight").range.end; ++e)
        gradients[e] = static_cast<float>((e * 7 + static_cast<std::size_t>(optimizer.steps())) % 13) - 6;
      update(optimizer, 0.01f, {.statistics = gradients});
    }
  };
  ParameterArena arena = make_arena();
  const auto whole = Optimizer::make(options, arena);
  train(*whole, arena, 7);

  ParameterArena other = make_arena();
  const auto first = Optimizer::make(options, other);
  train(*first, other, 3);
  const auto second = Optimizer::make(options, other);
  const std::vector<OptimizerState> from = first->states(), to = second->states();
  for (std::size_t i = 0; i < from.size(); ++i)
    copy_bytes(StreamView(), to[i].tensor.data(), from[i].tensor.data(), from[i].tensor.bytes());
  second->set_steps(first->steps());
  train(*second, other, 4);
  for (std::size_t e = 0; e < arena.elements(); ++e)
    ASSERT_EQ(arena.weights().as<float>()[e], other.weights().as<float>()[e]);
}

TEST(Optimizer, a_step_without_samples_or_with_a_broken_loss_changes_nothing) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [loss, samples] : {std::pair{0.0f, 0.0f}, {nan, 4.0f}, {infinity, 4.0f}})
    for (const OptimizerKind kind : {OptimizerKind::sgd, OptimizerKind::adamw}) {
      ParameterArena arena = make_arena();
      arena.initialise(1);
      const auto optimizer = Optimizer::make({.kind = kind, .weight_decay = 0.1f}, arena);
      const Tensor weights = arena.weights();
      const std::vector<float> before(weights.as<float>(), weights.as<float>() + weights.elements());
      float* gradients = arena.gradients().as<float>();
      for (std::size_t e = 0; e < arena.elements(); ++e) gradients[e] = nan;
      gradients[0] = loss;
      gradients[2] = samples;
      update(*optimizer, 0.1f, {.statistics = gradients});
      EXPECT_EQ(std::vector<float>(weights.as<float>(), weights.as<float>() + weights.elements()), before);
      for (const OptimizerState& state : optimizer->states())
        for (std::size_t i = 0; i < state.tensor.elements(); ++i)
          ASSERT_EQ(state.tensor.as<float>()[i], 0.0f);
    }
}

TEST(Optimizer, options_out_of_range_are_refused) {
  ParameterArena arena = make_arena();
  const auto refused = [&](const OptimizerOptions& options, std::string_view part) {
    test::expect_error<ConfigError>([&] { Optimizer::make(options, arena); }, {part});
  };
  refused({.weight_decay = -1}, "weight decay");
  refused({.momentum = 1}, "momentum");
  refused({.nesterov = true}, "needs momentum");
  refused({.kind = OptimizerKind::adamw, .beta1 = 1}, "betas");
  refused({.kind = OptimizerKind::adamw, .epsilon = 0}, "epsilon");
  EXPECT_EQ(parse_optimizer_kind("sgd"), OptimizerKind::sgd);
  EXPECT_EQ(parse_optimizer_kind("adamw"), OptimizerKind::adamw);
  test::expect_error<ConfigError>([] { parse_optimizer_kind("adam"); }, {"did you mean \"adamw\"?"});
}

}  // namespace
}  // namespace annulus
