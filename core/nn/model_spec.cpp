#include "core/nn/model_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/base/nearest_name.h"

namespace annulus {
namespace {

std::string text_of(const Conv2dSpec& conv) {
  std::string text = fmt::format("conv2d({},{}", conv.channels, conv.kernel);
  if (conv.stride != 1) text += fmt::format(",stride={}", conv.stride);
  if (conv.padding != 0) text += fmt::format(",pad={}", conv.padding);
  return text + (conv.bias ? ")" : ",bias=0)");
}

std::string text_of(const LinearSpec& linear) {
  return fmt::format("linear({}{})", linear.features, linear.bias ? "" : ",bias=0");
}

std::string text_of(const MaxPoolSpec& pool) {
  if (pool.stride == pool.window) return fmt::format("maxpool({})", pool.window);
  return fmt::format("maxpool({},stride={})", pool.window, pool.stride);
}

std::string text_of(const ResidualSpec& residual) {
  if (residual.shortcut.empty()) return fmt::format("residual[ {} ]", to_string(residual.main));
  return fmt::format("residual[ {} | {} ]", to_string(residual.main), to_string(residual.shortcut));
}

std::string text_of(const ReluSpec&) { return "relu"; }
std::string text_of(const GlobalAveragePoolSpec&) { return "global_average_pool"; }
std::string text_of(const BatchNormSpec&) { return "batch_norm"; }
std::string text_of(const DropoutSpec& dropout) { return fmt::format("dropout({})", dropout.probability); }
std::string text_of(const FlattenSpec&) { return "flatten"; }

// {} stands for the number of classes.
struct NamedModel {
  std::string_view name, spec;
};

constexpr std::array<NamedModel, 4> kNamedModels = {{
    {"mlp", "flatten linear(512) relu linear(256) relu linear({})"},
    // Y. LeCun et al., "Gradient-based learning applied to document recognition", Proc. IEEE 86 (1998), with
    // ReLU and max pooling.
    {"lenet",
     "conv2d(6,5,pad=2) relu maxpool(2) conv2d(16,5) relu maxpool(2) flatten "
     "linear(120) relu linear(84) relu linear({})"},
    {"cnn",
     "conv2d(32,3,pad=1) relu maxpool(2) conv2d(64,3,pad=1) relu maxpool(2) flatten "
     "linear(128) relu linear({})"},
    // ResNet-8: 6n + 2 layers with n = 1. K. He et al., "Deep residual learning for image recognition", CVPR
    // 2016, section 4.2; with projections where the shape changes.
    {"resnet",
     "conv2d(16,3,pad=1,bias=0) batch_norm relu "
     "residual[ conv2d(16,3,pad=1,bias=0) batch_norm relu conv2d(16,3,pad=1,bias=0) batch_norm ] relu "
     "residual[ conv2d(32,3,stride=2,pad=1,bias=0) batch_norm relu conv2d(32,3,pad=1,bias=0) batch_norm"
     " | conv2d(32,1,stride=2,bias=0) batch_norm ] relu "
     "residual[ conv2d(64,3,stride=2,pad=1,bias=0) batch_norm relu conv2d(64,3,pad=1,bias=0) batch_norm"
     " | conv2d(64,1,stride=2,bias=0) batch_norm ] relu "
     "global_average_pool linear({})"},
}};

bool is_word(std::string_view text) {
  return !text.empty() && text.find_first_of("([#| \t\r\n") == std::string_view::npos;
}

}  // namespace

std::string to_string(const LayerSpec& layer) {
  return std::visit([](const auto& options) { return text_of(options); }, layer.options);
}

std::string to_string(const std::vector<LayerSpec>& layers) {
  std::string text;
  for (const LayerSpec& layer : layers) {
    if (!text.empty()) text += ' ';
    text += to_string(layer);
  }
  return text;
}

std::string expand_model(std::string_view name_or_spec, std::size_t classes) {
  std::array<std::string_view, kNamedModels.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) {
    names[i] = kNamedModels[i].name;
    if (name_or_spec == names[i])
      return to_string(parse_model_spec(fmt::format(fmt::runtime(kNamedModels[i].spec), classes)));
  }
  // A single word that is close to a name is a mistyped name rather than a spec.
  require<ConfigError>(!is_word(name_or_spec),
                       "unknown model \"{}\"{}; known are {}, or write a spec such as \"{}\"", name_or_spec,
                       did_you_mean(name_or_spec, names), fmt::join(names, ", "),
                       fmt::format(fmt::runtime(kNamedModels[0].spec), classes));
  return to_string(parse_model_spec(name_or_spec));
}

}  // namespace annulus
