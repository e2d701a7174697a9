#include "core/nn/layer_node.h"

#include <cmath>

#include "core/base/error.h"

namespace annulus {
namespace {

/// "28x28x1", or "784" when flat.
std::string text_of(const Shape& sample) {
  if (sample.rank() == 1) return std::to_string(sample[0]);
  return fmt::format("{}x{}x{}", sample[0], sample[1], sample[2]);
}

/// Extent of a convolution's or pooling's output; throws if the window does not fit.
std::size_t window_outputs(const LayerNode& node, std::size_t extent, std::size_t window, std::size_t stride,
                           std::size_t padding) {
  require<ConfigError>(
      window <= extent + 2 * padding,
      "layer {}: a window of {} does not fit its {} input{}; use a smaller one, more padding or "
      "less pooling before it",
      node.describe(), window, text_of(node.input),
      padding == 0 ? "" : fmt::format(" padded by {}", padding));
  return (extent + 2 * padding - window) / stride + 1;
}

void require_image(const LayerNode& node) {
  require<ConfigError>(
      node.input.rank() == 3,
      "layer {}: needs images (height, width, channels), but its input is flat ({} features)",
      node.describe(), text_of(node.input));
}

/// The output of a layer, whose name and input are set.
struct OutputShape {
  const LayerNode& node;

  Shape operator()(const Conv2dSpec& conv) const {
    require_image(node);
    return {window_outputs(node, node.input[0], conv.kernel, conv.stride, conv.padding),
            window_outputs(node, node.input[1], conv.kernel, conv.stride, conv.padding), conv.channels};
  }

  Shape operator()(const LinearSpec& linear) const {
    require<ConfigError>(node.input.rank() == 1,
                         "layer {}: needs a flat input, but its input is {}; put \"flatten\" or "
                         "\"global_average_pool\" before it",
                         node.describe(), text_of(node.input));
    return {linear.features};
  }

  Shape operator()(const MaxPoolSpec& pool) const {
    require_image(node);
    constexpr std::size_t largest = 15;  // kernels::Pool2dShape keeps a position of the window in a byte
    require<ConfigError>(pool.window <= largest, "layer {}: windows of max pooling go up to {}",
                         node.describe(), largest);
    return {window_outputs(node, node.input[0], pool.window, pool.stride, 0),
            window_outputs(node, node.input[1], pool.window, pool.stride, 0), node.input[2]};
  }

  Shape operator()(const GlobalAveragePoolSpec&) const {
    require_image(node);
    return {node.input[2]};
  }

  Shape operator()(const FlattenSpec&) const { return {node.input.elements()}; }

  Shape operator()(const ResidualSpec&) const {
    const Shape main = node.main.back().output;
    const Shape shortcut = node.shortcut.empty() ? node.input : node.shortcut.back().output;
    require<ConfigError>(main == shortcut,
                         "layer {}: its main branch gives {} and its shortcut {}; a shortcut such as "
                         "\"| conv2d(channels,1,stride=2)\" brings them together",
                         node.describe(), text_of(main), text_of(shortcut));
    return main;
  }

  // ReLU, batch normalisation, dropout.
  template <class Spec>
  Shape operator()(const Spec&) const {
    return node.input;
  }
};

std::vector<LayerNode> resolve(const std::vector<LayerSpec>& layers, const std::string& prefix, Shape input,
                               std::size_t& next_index) {
  std::vector<LayerNode> nodes;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    LayerNode node;
    node.spec = layers[i];
    node.name = prefix + std::to_string(i);
    node.input = input;
    if (const auto* residual = std::get_if<ResidualSpec>(&layers[i].options)) {
      node.main = resolve(residual->main, node.name + ".main.", input, next_index);
      node.shortcut = resolve(residual->shortcut, node.name + ".shortcut.", input, next_index);
    }
    node.index = next_index++;
    node.output = std::visit(OutputShape{node}, node.spec.options);
    input = node.output;
    nodes.push_back(std::move(node));
  }
  return nodes;
}

/// Weight and, if asked for, bias with PyTorch's default for convolutions and linear layers: Kaiming uniform
/// with a = sqrt(5), which is uniform in +-1/sqrt(fan_in), for both.
std::vector<ArenaSlice> affine_slices(const std::string& name, Shape weight, std::size_t fan_in, bool bias) {
  const InitialValue initial{.uniform_bound = static_cast<float>(1 / std::sqrt(static_cast<double>(fan_in)))};
  std::vector<ArenaSlice> slices;
  slices.push_back({.name = name + ".weight", .shape = weight, .initial = initial});
  if (bias) slices.push_back({.name = name + ".bias", .shape = {weight[0]}, .initial = initial});
  return slices;
}

}  // namespace

std::string LayerNode::describe() const {
  const bool is_residual = std::holds_alternative<ResidualSpec>(spec.options);
  return name + " " + (is_residual ? "residual" : to_string(spec));
}

std::vector<ArenaSlice> LayerNode::slices() const {
  if (const auto* conv = std::get_if<Conv2dSpec>(&spec.options)) {
    const std::size_t channels = input[2];
    return affine_slices(name, {conv->channels, channels, conv->kernel, conv->kernel},
                         channels * conv->kernel * conv->kernel, conv->bias);
  }
  if (const auto* linear = std::get_if<LinearSpec>(&spec.options))
    return affine_slices(name, {linear->features, input[0]}, input[0], linear->bias);
  if (std::holds_alternative<BatchNormSpec>(spec.options)) {
    const Shape channels{input[input.rank() - 1]};
    using Role = ArenaSlice::Role;
    return {
        {.name = name + ".weight", .shape = channels, .initial = {.constant = 1}},
        {.name = name + ".bias", .shape = channels},
        {.name = name + ".running_mean", .shape = channels, .role = Role::buffer},
        {.name = name + ".running_var", .shape = channels, .role = Role::buffer, .initial = {.constant = 1}}};
  }
  return {};
}

std::vector<LayerNode> resolve_layers(const std::vector<LayerSpec>& layers, InputShape input) {
  require<ConfigError>(input.height > 0 && input.width > 0 && input.channels > 0,
                       "a model needs images, but its input is {}x{}x{}", input.height, input.width,
                       input.channels);
  std::size_t next_index = 0;
  return resolve(layers, "", {input.height, input.width, input.channels}, next_index);
}

Shape with_batch(std::size_t batch, const Shape& sample) {
  if (sample.rank() == 1) return {batch, sample[0]};
  return {batch, sample[0], sample[1], sample[2]};
}

}  // namespace annulus
