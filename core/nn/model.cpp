#include "core/nn/model.h"

#include "core/base/error.h"
#include "core/nn/layer_node.h"
#include "core/nn/network.h"

namespace annulus {
namespace {

/// Buffers and parameters in the order in which backward finishes them.
std::vector<ArenaSlice> arena_slices(std::span<const LayerNode> layers) {
  std::vector<ArenaSlice> slices;
  visit_backward(layers, [&](const LayerNode& layer) {
    for (ArenaSlice& slice : layer.slices()) slices.push_back(std::move(slice));
  });
  return slices;
}

}  // namespace

Model::Model(std::string_view spec, InputShape input, Device device, const ArenaAllocator& gradient_allocator,
             Precision precision)
    : input_(input), workspace_(std::make_unique<Buffer>()) {
  const std::vector<LayerSpec> layers = parse_model_spec(spec);
  spec_ = to_string(layers);
  layers_ = resolve_layers(layers, input);

  const LayerNode& last = layers_.back();
  require<ConfigError>(last.output.rank() == 1,
                       "layer {}: the last layer gives {}, but one number per class is needed; end the model "
                       "with \"flatten linear(CLASSES)\"",
                       last.describe(), last.output.to_string());
  classes_ = last.output[0];

  arena_ = std::make_unique<ParameterArena>(arena_slices(layers_), device, gradient_allocator, precision);
  require<ConfigError>(arena_->parameter_count() > 0, "the model \"{}\" has no parameters to train", spec_);
  gradient_ranges_.push_back({0, arena_->parameters().begin});
  visit_backward(layers_, [&](const LayerNode& layer) {
    const ElementRange range = parameter_range(layer, *arena_);
    if (range.size() > 0) gradient_ranges_.push_back(range);
  });
}

Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

Network& Model::network(std::size_t batch) {
  require<ShapeError>(batch > 0, "a micro-batch without samples needs no network");
  std::unique_ptr<Network>& network = networks_[batch];
  if (network == nullptr) network = std::make_unique<Network>(layers_, input_, batch, *arena_, *workspace_);
  if (network->workspace_bytes() > workspace_->bytes()) {
    const std::size_t bytes = network->workspace_bytes();
    *workspace_ = Buffer();  // freed first: the two never need to fit together
    *workspace_ = Buffer(device(), bytes);
  }
  return *network;
}

}  // namespace annulus
