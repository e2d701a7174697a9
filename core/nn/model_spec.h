// Models as text. A spec is a list of layers in the order of the forward pass:
//
//   conv2d(32,3,pad=1) relu maxpool(2) flatten linear(128) relu linear(10)
//
//   conv2d(channels, kernel, stride=1, pad=0, bias=1)   square kernel, zeros on all four sides
//   linear(features, bias=1)                            of a flat input
//   relu
//   maxpool(window, stride=window)
//   global_average_pool                                 [height, width, channels] -> [channels]
//   batch_norm                                          epsilon 1e-5, momentum 0.1, as PyTorch's defaults
//   dropout(probability)
//   flatten                                             in PyTorch's order (channels, height, width)
//   residual[ main | shortcut ]                         main(x) + shortcut(x); no shortcut: main(x) + x
//
// Arguments go by position or by name. Layers are separated by white space; `#` starts a comment that
// ends with its line. Parameters are named as in the state_dict of the same torch.nn.Sequential:
// "0.weight", "4.main.0.weight".
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace annulus {

/// One image of a dataset.
struct InputShape {
  std::size_t height = 0, width = 0, channels = 0;
  friend bool operator==(const InputShape&, const InputShape&) = default;
};

struct Conv2dSpec {
  std::size_t channels = 0, kernel = 0, stride = 1, padding = 0;
  bool bias = true;
};
struct LinearSpec {
  std::size_t features = 0;
  bool bias = true;
};
struct ReluSpec {};
struct MaxPoolSpec {
  std::size_t window = 0, stride = 0;
};
struct GlobalAveragePoolSpec {};
struct BatchNormSpec {};
struct DropoutSpec {
  float probability = 0;
};
struct FlattenSpec {};
struct LayerSpec;
struct ResidualSpec {
  std::vector<LayerSpec> main, shortcut;  ///< an empty shortcut is the identity
};

struct LayerSpec {
  std::variant<Conv2dSpec, LinearSpec, ReluSpec, MaxPoolSpec, GlobalAveragePoolSpec, BatchNormSpec,
               DropoutSpec, FlattenSpec, ResidualSpec>
      options;
};

/// Reads a spec. Throws ConfigError that points at the position of the fault and suggests what was meant.
std::vector<LayerSpec> parse_model_spec(std::string_view text);

/// The canonical text of layers: parse_model_spec gives the same layers back. Defaults are left out.
std::string to_string(const LayerSpec& layer);
std::string to_string(const std::vector<LayerSpec>& layers);

/// The canonical spec for the name of a model ("mlp", "lenet", "cnn", "resnet") with `classes` outputs, or
/// for a spec, which names its outputs itself. Throws ConfigError that suggests the nearest name.
std::string expand_model(std::string_view name_or_spec, std::size_t classes);

}  // namespace annulus
