// Optimizers: SGD and AdamW with the semantics of torch.optim, one launch over the arena's parameters.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/step_values.h"
#include "core/base/tensor.h"
#include "core/nn/parameter_arena.h"
#include "kernels/optimizer.h"

namespace annulus {

enum class OptimizerKind { sgd, adamw };

/// Reads "sgd" or "adamw"; throws ConfigError that suggests the nearest.
OptimizerKind parse_optimizer_kind(std::string_view text);

/// The learning rate is an argument of every update, because schedules change it.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::sgd;
  float weight_decay = 0;  ///< SGD: added to the gradient; AdamW: decoupled
  float momentum = 0;      ///< SGD
  bool nesterov = false;   ///< SGD; needs momentum
  float beta1 = 0.9f;      ///< AdamW
  float beta2 = 0.999f;    ///< AdamW
  float epsilon = 1e-8f;   ///< AdamW
};

/// One optimizer state of one parameter, for checkpoints.
struct OptimizerState {
  std::string name;       ///< "momentum", "first_moment" or "second_moment"
  std::string parameter;  ///< the parameter's name, for instance "3.weight"
  Tensor tensor;          ///< f32, the parameter's shape, on its device
};

/// Updates the parameters of one arena, which must outlive it. Buffers and statistics are left alone.
class Optimizer {
 public:
  /// Throws ConfigError for options out of range.
  static std::unique_ptr<Optimizer> make(const OptimizerOptions& options, ParameterArena& arena);
  virtual ~Optimizer() = default;

  /// Counts one step, and fills in what its update reads: the learning rate, and AdamW's numbers.
  void advance(float learning_rate, StepValues& values);

  /// The update of the current step, from the arena's summed gradients; `values` is in memory of the device.
  virtual void update(StreamView stream, const StepValues* values,
                      const kernels::GradientScaling& scaling) = 0;

  /// Every state of every parameter; starts as zeros. A loader writes through the tensors.
  virtual std::vector<OptimizerState> states() const = 0;

  /// Updates made so far; a resumed run sets it.
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

 protected:
  explicit Optimizer(ParameterArena& arena) : arena_(arena) {}

  /// The copy of the parameters that an update rounds to bf16, or nothing.
  Tensor rounded() const;

  ParameterArena& arena_;

 private:
  virtual void fill_in(std::int64_t step, StepValues& values) const = 0;

  std::int64_t steps_ = 0;
};

}  // namespace annulus
