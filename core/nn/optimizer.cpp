#include "core/nn/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/nearest_name.h"

namespace annulus {
namespace {

/// One number for every element of the arena's parameters, at the same place.
class StateBuffer {
 public:
  StateBuffer(std::string name, const ParameterArena& arena)
      : name_(std::move(name)),
        begin_(arena.parameters().begin),
        buffer_(arena.device(), arena.parameters().size() * sizeof(float)) {
    const StreamView stream(arena.device(), nullptr);
    zero_bytes(stream, buffer_.data(), buffer_.bytes());
    stream.synchronize();
  }

  Tensor all() const { return view(0, {buffer_.bytes() / sizeof(float)}); }

  void append_states(const ParameterArena& arena, std::vector<OptimizerState>& states) const {
    for (const ArenaSlice& slice : arena.slices())
      if (slice.role == ArenaSlice::Role::parameter)
        states.push_back({name_, slice.name, view(slice.range.begin - begin_, slice.shape)});
  }

 private:
  Tensor view(std::size_t offset, Shape shape) const {
    return Tensor(static_cast<float*>(buffer_.data()) + offset, shape, DType::f32, buffer_.device());
  }

  std::string name_;
  std::size_t begin_;  // element of the arena where the parameters begin
  Buffer buffer_;
};

class Sgd final : public Optimizer {
 public:
  Sgd(const OptimizerOptions& options, ParameterArena& arena)
      : Optimizer(arena),
        options_{.momentum = options.momentum,
                 .weight_decay = options.weight_decay,
                 .nesterov = options.nesterov} {
    if (options.momentum != 0) momentum_.emplace("momentum", arena);
  }

  std::vector<OptimizerState> states() const override {
    std::vector<OptimizerState> states;
    if (momentum_) momentum_->append_states(arena_, states);
    return states;
  }

  void update(StreamView stream, const StepValues* values, const kernels::GradientScaling& scaling) override {
    kernels::sgd_update(stream, options_, values, scaling, arena_.gradients(arena_.parameters()),
                        arena_.weights(arena_.parameters()), momentum_ ? momentum_->all() : Tensor(),
                        rounded());
  }

 private:
  void fill_in(std::int64_t, StepValues&) const override {}

  kernels::SgdOptions options_;
  std::optional<StateBuffer> momentum_;  // none without momentum
};

class AdamW final : public Optimizer {
 public:
  AdamW(const OptimizerOptions& options, ParameterArena& arena)
      : Optimizer(arena),
        options_{.beta1 = options.beta1,
                 .beta2 = options.beta2,
                 .epsilon = options.epsilon,
                 .weight_decay = options.weight_decay},
        first_moment_("first_moment", arena),
        second_moment_("second_moment", arena) {}

  std::vector<OptimizerState> states() const override {
    std::vector<OptimizerState> states;
    first_moment_.append_states(arena_, states);
    second_moment_.append_states(arena_, states);
    return states;
  }

  void update(StreamView stream, const StepValues* values, const kernels::GradientScaling& scaling) override {
    kernels::adamw_update(stream, options_, values, scaling, arena_.gradients(arena_.parameters()),
                          arena_.weights(arena_.parameters()), first_moment_.all(), second_moment_.all(),
                          rounded());
  }

 private:
  void fill_in(std::int64_t step, StepValues& values) const override {
    const auto t = static_cast<double>(step);
    values.adamw_step_size =
        static_cast<float>(double{values.learning_rate} / (1 - std::pow(double{options_.beta1}, t)));
    values.adamw_inverse_root_correction =
        static_cast<float>(1 / std::sqrt(1 - std::pow(double{options_.beta2}, t)));
  }

  kernels::AdamWOptions options_;
  StateBuffer first_moment_, second_moment_;
};

}  // namespace

OptimizerKind parse_optimizer_kind(std::string_view text) {
  constexpr std::array<std::string_view, 2> names = {"sgd", "adamw"};
  const auto found = std::find(names.begin(), names.end(), text);
  require<ConfigError>(found != names.end(), "unknown optimizer \"{}\"{}; known are sgd and adamw", text,
                       did_you_mean(text, names));
  return static_cast<OptimizerKind>(found - names.begin());
}

std::unique_ptr<Optimizer> Optimizer::make(const OptimizerOptions& options, ParameterArena& arena) {
  require<ConfigError>(std::isfinite(options.weight_decay) && options.weight_decay >= 0,
                       "weight decay must be 0 or more, not {}", options.weight_decay);
  if (options.kind == OptimizerKind::sgd) {
    require<ConfigError>(options.momentum >= 0 && options.momentum < 1,
                         "momentum must be at least 0 and less than 1, not {}", options.momentum);
    require<ConfigError>(!options.nesterov || options.momentum > 0, "Nesterov's momentum needs momentum");
    return std::make_unique<Sgd>(options, arena);
  }
  for (const float beta : {options.beta1, options.beta2})
    require<ConfigError>(beta >= 0 && beta < 1, "AdamW's betas must be at least 0 and less than 1, not {}",
                         beta);
  require<ConfigError>(options.epsilon > 0, "AdamW's epsilon must be more than 0, not {}", options.epsilon);
  return std::make_unique<AdamW>(options, arena);
}

void Optimizer::advance(float learning_rate, StepValues& values) {
  values.learning_rate = learning_rate;
  fill_in(++steps_, values);
}

Tensor Optimizer::rounded() const {
  if (arena_.precision() != Precision::bf16) return {};
  return arena_.compute_weights(arena_.parameters());
}

}  // namespace annulus
