#include "core/nn/training_step.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/base/step_values.h"
#include "core/nn/accumulation_tree.h"
#include "core/nn/input_staging.h"
#include "core/nn/network.h"
#include "core/nn/non_finite.h"
#include "core/nn/phase_clock.h"
#include "core/nn/step_graph.h"
#include "kernels/reduce.h"
#include "kernels/softmax_cross_entropy.h"

namespace annulus {
namespace {

constexpr float kRunningDecay = 0.9f;  // 1 - momentum of PyTorch's BatchNorm2d
constexpr std::size_t kStatisticsBytes = ParameterArena::kStatistics * sizeof(float);

void check(const TrainingOptions& options) {
  require<ConfigError>(options.label_smoothing >= 0 && options.label_smoothing < 1,
                       "label smoothing must be at least 0 and less than 1, not {}", options.label_smoothing);
  require<ConfigError>(std::isfinite(options.clip_norm) && options.clip_norm >= 0,
                       "the largest gradient norm must be 0 (no clipping) or more, not {}",
                       options.clip_norm);
}

}  // namespace

class TrainingStep::Implementation final : public PassObserver {
 public:
  Implementation(Model& model, Optimizer& optimizer, GradientSynchronizer& synchronizer,
                 const TrainingOptions& options)
      : model_(model),
        optimizer_(optimizer),
        synchronizer_(synchronizer),
        options_(options),
        compute_(model.device()),
        staging_(model.device()),
        tree_(model.arena()),
        clock_(model.device()),
        values_(model.device(), sizeof(StepValues)),
        host_values_(Buffer::pinned(model.device(), sizeof(StepValues))),
        evaluation_statistics_(model.device(), kStatisticsBytes),
        host_statistics_(Buffer::pinned(model.device(), kStatisticsBytes + sizeof(float))) {
    check(options);
    options_.augment.seed = options.seed;
    options_.augment.values = values();
    if (options.clip_norm > 0) {
      const Device device = model.device();
      squared_norm_ = Buffer(device, sizeof(float));
      norm_workspace_ =
          Buffer(device, kernels::reduce_workspace_bytes(device, model.arena().parameters().size()));
    }
  }

  StepResult run(std::span<const MicroBatch> micro_batches, float learning_rate, std::uint64_t epoch,
                 std::uint64_t step) {
    require<ShapeError>(!micro_batches.empty(), "a step needs at least one micro-batch; it may be empty");
    model_.arena().refresh_compute_weights(compute_);
    clock_.restart();
    clock_.enter(Phase::input, compute_);
    tree_.start(compute_, micro_batches.size());
    stage(micro_batches);
    const std::int64_t updates = optimizer_.steps();
    write_values(learning_rate, epoch, step);

    if (synchronizer_.is_identity())
      submit_or_launch();
    else
      submit_step();  // what it exchanges with other ranks is not captured

    // On the way with the statistics, and 0 without clipping, which does not look at it.
    float& squared_norm = static_cast<float*>(host_statistics_.data())[ParameterArena::kStatistics];
    squared_norm = 0;
    if (options_.clip_norm > 0) copy_bytes(compute_, &squared_norm, squared_norm_.data(), sizeof(float));
    const StepResult result = read_statistics(model_.arena().gradients().data());
    // The kernels have skipped the update then.
    if (!std::isfinite(result.loss_sum)) {
      optimizer_.set_steps(updates);
      fail_non_finite("the loss", result.loss_sum, step);
    }
    if (!std::isfinite(squared_norm)) {
      optimizer_.set_steps(updates);
      fail_non_finite("the norm of the gradient", squared_norm, step);
    }
    return result;
  }

  StepResult evaluate(const MicroBatch& batch) {
    if (batch.samples() == 0) return {};
    model_.arena().refresh_compute_weights(compute_);
    clock_.restart();
    clock_.enter(Phase::input, compute_);
    Network& network = model_.network(batch.samples());
    kernels::AugmentOptions normalise = options_.augment;
    normalise.crop_padding = 0;
    normalise.horizontal_flip = false;
    check_fits(batch);
    const MicroBatch staged = staging_.stage(compute_, 0, batch);
    kernels::augment(compute_, normalise, staged.images, staged.sample_index, network.input());

    clock_.enter(Phase::forward, compute_);
    network.forward(network.pass(compute_));
    kernels::softmax_cross_entropy(compute_, network.logits(), staged.labels, 0.0f, network.loss_workspace(),
                                   Tensor(), statistics_view(evaluation_statistics_.data()));
    clock_.stop(compute_);
    return read_statistics(evaluation_statistics_.data());
  }

  /// Elements of the current micro-batch's gradients are final.
  void backward_done(ElementRange range) override {
    tree_.carry(compute_, current_, range);
    if (current_ + 1 < staged_.size() || synchronizer_.is_identity()) return;
    clock_.enter(Phase::communication, compute_);
    synchronizer_.add(range, compute_);
    clock_.enter(Phase::backward, compute_);
  }

 private:
  void submit_or_launch() {
    const StepGraph::Way way = graph_.run(compute_, key(), [this] { submit_step(); });
    // A graph marks the phases itself, with the events that it was captured with.
    if (way == StepGraph::Way::captured) graph_marks_ = clock_.marks();
    if (way == StepGraph::Way::launched) clock_.resume(graph_marks_);
  }

  /// The whole step, from the staged micro-batches to the updated weights.
  void submit_step() {
    for (current_ = 0; current_ < staged_.size(); ++current_) add_gradients(staged_[current_]);
    if (!synchronizer_.is_identity()) {
      clock_.enter(Phase::communication, compute_);
      synchronizer_.finalize(compute_);
    }
    clock_.enter(Phase::update, compute_);
    update();
    clock_.stop(compute_);
  }

  /// Forward and backward of one micro-batch, carried through the tree.
  void add_gradients(const MicroBatch& batch) {
    float* const gradients = tree_.target(current_);
    if (batch.samples() == 0) {
      zero_bytes(compute_, gradients, model_.arena().elements() * sizeof(float));
      for (const ElementRange range : model_.gradient_ranges()) backward_done(range);
      return;
    }
    if (current_ > 0) clock_.enter(Phase::input, compute_);
    Network& network = model_.network(batch.samples());
    kernels::augment(compute_, options_.augment, batch.images, batch.sample_index, network.input());

    clock_.enter(Phase::forward, compute_);
    Pass pass = training_pass(network, batch);
    pass.gradients = gradients;
    network.forward(pass);
    kernels::softmax_cross_entropy(compute_, network.logits(), batch.labels, options_.label_smoothing,
                                   network.loss_workspace(), network.logits_gradient(),
                                   statistics_view(gradients));

    clock_.enter(Phase::backward, compute_);
    pass.observer = this;
    backward_done(model_.gradient_ranges().front());  // statistics and batch moments
    network.backward(pass);
  }

  void check_fits(const MicroBatch& batch) const {
    const InputShape input = model_.input();
    const std::size_t samples = batch.samples();
    const Shape expected{samples, input.height, input.width, input.channels};
    require<ShapeError>(batch.images.shape() == expected && batch.sample_index.shape() == Shape{samples},
                        "a micro-batch of {} labels has images {} and sample indices {}, but the model needs "
                        "images {} and an index for each",
                        samples, batch.images.shape().to_string(), batch.sample_index.shape().to_string(),
                        expected.to_string());
  }

  void stage(std::span<const MicroBatch> micro_batches) {
    for (const MicroBatch& batch : micro_batches) {
      if (batch.samples() == 0) continue;
      check_fits(batch);
      model_.network(batch.samples());  // planned before key() asks where the workspace is
    }
    staged_.clear();
    for (const MicroBatch& batch : micro_batches)
      staged_.push_back(staging_.stage(compute_, staged_.size(), batch));
  }

  void write_values(float learning_rate, std::uint64_t epoch, std::uint64_t step) {
    StepValues& host = *static_cast<StepValues*>(host_values_.data());
    host.step = step;
    host.epoch = epoch;
    optimizer_.advance(learning_rate, host);
    copy_bytes(compute_, values_.data(), &host, sizeof(host));
  }

  const StepValues* values() const { return static_cast<const StepValues*>(values_.data()); }

  /// What the launches of the step depend on: extents, and memory that may have moved since the last step.
  const StepGraph::Key& key() {
    const auto address = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data); };
    key_.clear();
    for (const MicroBatch& batch : staged_)
      key_.insert(key_.end(), {batch.samples(), batch.first_sample, address(batch.images.data()),
                               address(batch.labels.data()), address(batch.sample_index.data())});
    key_.push_back(address(model_.workspace()));
    return key_;
  }

  Pass training_pass(const Network& network, const MicroBatch& batch) const {
    Pass pass = network.pass(compute_);
    pass.training = true;
    pass.dropout = {.seed = options_.seed, .values = values(), .first_sample = batch.first_sample};
    return pass;
  }

  void update() {
    const ParameterArena& arena = model_.arena();
    const auto* statistics = arena.gradients().as<float>();
    kernels::GradientScaling scaling{.statistics = statistics, .clip_norm = options_.clip_norm};
    if (options_.clip_norm > 0) {
      scaling.squared_norm = static_cast<const float*>(squared_norm_.data());
      kernels::squared_norm(compute_, arena.gradients(arena.parameters()), norm_workspace_.data(),
                            Tensor(squared_norm_.data(), {1}, DType::f32, arena.device()));
    }
    optimizer_.update(compute_, values(), scaling);
    if (arena.buffers().size() > 0)
      kernels::update_running_average(compute_, kRunningDecay, statistics, arena.gradients(arena.buffers()),
                                      arena.weights(arena.buffers()));
  }

  Tensor statistics_view(void* data) const {
    return Tensor(data, {ParameterArena::kStatistics}, DType::f32, model_.device());
  }

  /// Waits for the stream.
  StepResult read_statistics(const void* statistics) {
    copy_bytes(compute_, host_statistics_.data(), statistics, kStatisticsBytes);
    compute_.synchronize();
    const auto* host = static_cast<const float*>(host_statistics_.data());
    return {.loss_sum = host[0],
            .hits = static_cast<std::size_t>(host[1]),
            .samples = static_cast<std::size_t>(host[2]),
            .times = clock_.times()};
  }

  [[noreturn]] void fail_non_finite(const char* what, double value, std::uint64_t step) {
    NonFiniteSearch search(model_, compute_);
    for (const MicroBatch& batch : staged_) {
      if (batch.samples() == 0) continue;
      Network& network = model_.network(batch.samples());
      kernels::augment(compute_, options_.augment, batch.images, batch.sample_index, network.input());
      search.input_done(network.input());
      Pass pass = training_pass(network, batch);
      pass.gradients = model_.arena().gradients().as<float>();  // batch moments go there
      pass.observer = &search;
      network.forward(pass);
    }
    fail<NonFiniteError>(
        "step {}: {} is {}; first value that is not finite: {}. The weights are those before this "
        "step; lower the learning rate, clip the gradients' norm or check the data",
        step + 1, what, std::isnan(value) ? "nan" : "infinite", search.join(synchronizer_));
  }

  Model& model_;
  Optimizer& optimizer_;
  GradientSynchronizer& synchronizer_;
  TrainingOptions options_;
  Stream compute_;
  InputStaging staging_;
  AccumulationTree tree_;
  PhaseClock clock_;
  Buffer values_, host_values_;  // a StepValues
  Buffer evaluation_statistics_, host_statistics_;
  Buffer squared_norm_, norm_workspace_;  // only with clipping
  std::vector<MicroBatch> staged_;        // the step's, on the device
  std::size_t current_ = 0;               // micro-batch under way
  StepGraph::Key key_;
  StepGraph graph_;
  std::size_t graph_marks_ = 0;  // of the clock in a step that the graph makes
};

TrainingStep::TrainingStep(Model& model, Optimizer& optimizer, GradientSynchronizer& synchronizer,
                           const TrainingOptions& options)
    : implementation_(std::make_unique<Implementation>(model, optimizer, synchronizer, options)) {}

TrainingStep::~TrainingStep() = default;

StepResult TrainingStep::run(std::span<const MicroBatch> micro_batches, float learning_rate,
                             std::uint64_t epoch, std::uint64_t step) {
  return implementation_->run(micro_batches, learning_rate, epoch, step);
}

StepResult TrainingStep::evaluate(const MicroBatch& batch) { return implementation_->evaluate(batch); }

}  // namespace annulus
