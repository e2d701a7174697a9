#include "kernels/batch_norm.h"

#include "core/nn/layers/make_layer.h"
#include "kernels/elementwise.h"

namespace annulus {
namespace {

constexpr float kEpsilon = 1e-5f;  // PyTorch's default

/// Batch normalisation of images per channel, or of flat features. In training it normalises with the
/// moments of the micro-batch, and leaves them, times the samples, in the gradient slices of its running
/// moments, where they are summed like gradients; the training step folds them in.
class BatchNormLayer final : public Layer {
 public:
  BatchNormLayer(const LayerNode& node, std::size_t batch, const ParameterArena& arena)
      : device_(arena.device()),
        batch_(batch),
        rows_{batch * (node.input.elements() / node.input[node.input.rank() - 1]),
              node.input[node.input.rank() - 1]},
        scale_(&arena.find(node.name + ".weight")),
        shift_(&arena.find(node.name + ".bias")),
        running_mean_(&arena.find(node.name + ".running_mean")),
        running_variance_(&arena.find(node.name + ".running_var")) {}

  PlannedTensor plan_forward(MemoryPlan& plan, const PlannedTensor& x) override {
    x_ = x;
    plan.use(x_);
    mean_ = plan.add(scale_->shape);
    inverse_std_ = plan.add(scale_->shape);
    forward_workspace_ = add_workspace(plan);
    return y_ = plan.add(x.shape, x.dtype);
  }

  PlannedTensor plan_backward(MemoryPlan& plan, const PlannedTensor& dy, bool) override {
    dy_ = dy;
    for (const PlannedTensor& read : {dy_, x_, mean_, inverse_std_}) plan.use(read);
    backward_workspace_ = add_workspace(plan);
    return dx_ = dy.writable ? dy : plan.add(dy.shape, dy.dtype);
  }

  void forward(const Pass& pass) override {
    const Tensor scale = pass.weights(*scale_), shift = pass.weights(*shift_);
    const Tensor x = rows(pass, x_), y = rows(pass, y_);
    if (!pass.training) {
      kernels::batch_norm_inference(pass.stream, x, scale, shift, pass.weights(*running_mean_),
                                    pass.weights(*running_variance_), kEpsilon, y);
      return;
    }
    const Tensor mean = pass.tensor(mean_), variance = pass.gradient(*running_variance_);
    kernels::batch_norm_forward(pass.stream, x, scale, shift, kEpsilon, workspace(pass, forward_workspace_),
                                y, mean, pass.tensor(inverse_std_), variance);
    const auto samples = static_cast<float>(batch_);
    kernels::scale(pass.stream, samples, mean, pass.gradient(*running_mean_));
    kernels::scale(pass.stream, samples, variance, variance);
  }

  void backward(const Pass& pass) override {
    kernels::batch_norm_backward(pass.stream, rows(pass, dy_), rows(pass, x_), pass.weights(*scale_),
                                 pass.tensor(mean_), pass.tensor(inverse_std_),
                                 workspace(pass, backward_workspace_), rows(pass, dx_),
                                 pass.gradient(*scale_), pass.gradient(*shift_));
  }

 private:
  PlannedTensor add_workspace(MemoryPlan& plan) const {
    const std::size_t bytes = kernels::batch_norm_workspace_bytes(device_, rows_[0], rows_[1]);
    return bytes == 0 ? PlannedTensor() : plan.add({bytes}, DType::u8);
  }

  void* workspace(const Pass& pass, const PlannedTensor& planned) const {
    return planned.empty() ? nullptr : pass.tensor(planned).data();
  }

  Tensor rows(const Pass& pass, const PlannedTensor& tensor) const {
    return pass.tensor(tensor).reshaped(rows_);
  }

  Device device_;
  std::size_t batch_;
  Shape rows_;  // [batch * height * width, channels]
  const ArenaSlice *scale_, *shift_, *running_mean_, *running_variance_;
  PlannedTensor x_, y_, mean_, inverse_std_, forward_workspace_, dy_, dx_, backward_workspace_;
};

}  // namespace

std::unique_ptr<Layer> make_batch_norm_layer(const FusedLayer& fused, std::size_t batch,
                                             const ParameterArena& arena) {
  return std::make_unique<BatchNormLayer>(*fused.node, batch, arena);
}

}  // namespace annulus
