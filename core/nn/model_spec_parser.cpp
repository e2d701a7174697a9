// The parser of model specs: recursive descent over the grammar in model_spec.h.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/nearest_name.h"
#include "core/nn/model_spec.h"

namespace annulus {
namespace {

// Far beyond any layer that fits a machine, and small enough that products of two never overflow.
constexpr double kLargestCount = 1 << 24;

constexpr std::array<std::string_view, 9> kLayerNames = {
    "conv2d",     "linear",  "relu",    "maxpool", "global_average_pool",
    "batch_norm", "dropout", "flatten", "residual"};

/// Throws with the position (from 1) and the text there.
template <class... Args>
[[noreturn]] void fail_at(std::string_view text, std::size_t position, fmt::format_string<Args...> format,
                          Args&&... args) {
  const std::string_view rest = text.substr(std::min(position, text.size()), 24);
  fail<ConfigError>("model spec, character {}{}: {}", position + 1,
                    rest.empty() ? std::string(" (its end)") : fmt::format(" (\"{}\")", rest),
                    fmt::format(format, std::forward<Args>(args)...));
}

struct Argument {
  std::string_view name;  // empty: by position
  double value = 0;
  std::size_t position = 0;
};

/// The arguments of one layer, taken in the order of its parameters.
class Arguments {
 public:
  Arguments(std::string_view text, std::string_view layer, std::size_t position,
            std::vector<Argument> arguments)
      : text_(text), layer_(layer), position_(position), arguments_(std::move(arguments)) {}

  std::size_t count(std::string_view name, double smallest, std::optional<std::size_t> otherwise = {}) {
    const std::optional<Argument> argument = take(name);
    if (!argument) {
      if (!otherwise) fail_at(text_, position_, "{} needs its argument \"{}\"", layer_, name);
      return *otherwise;
    }
    const double value = argument->value;
    if (value != std::floor(value) || value < smallest || value > kLargestCount)
      fail_at(text_, argument->position, "{} of {} must be a whole number from {} to {}", name, layer_,
              smallest, kLargestCount);
    return static_cast<std::size_t>(value);
  }

  bool flag(std::string_view name, bool otherwise) {
    const std::optional<Argument> argument = take(name);
    if (!argument) return otherwise;
    if (argument->value != 0 && argument->value != 1)
      fail_at(text_, argument->position, "{} of {} must be 0 or 1", name, layer_);
    return argument->value == 1;
  }

  float probability(std::string_view name) {
    const std::optional<Argument> argument = take(name);
    if (!argument) fail_at(text_, position_, "{} needs its argument \"{}\"", layer_, name);
    if (!(argument->value >= 0 && argument->value < 1))
      fail_at(text_, argument->position, "{} of {} must be at least 0 and less than 1", name, layer_);
    return static_cast<float>(argument->value);
  }

  /// Whatever has not been taken is an error.
  void finish() const {
    if (arguments_.empty()) return;
    const Argument& left = arguments_.front();
    if (left.name.empty())
      fail_at(text_, left.position, "{} takes at most {} arguments", layer_, names_.size());
    fail_at(text_, left.position, "{} has no argument \"{}\"{}", layer_, left.name,
            did_you_mean(left.name, names_));
  }

 private:
  std::optional<Argument> take(std::string_view name) {
    names_.push_back(name);
    for (auto it = arguments_.begin(); it != arguments_.end(); ++it) {
      // Positional arguments come first, so one at the front belongs to this parameter.
      if (it->name != name && !(it->name.empty() && it == arguments_.begin())) continue;
      const Argument argument = *it;
      arguments_.erase(it);
      return argument;
    }
    return std::nullopt;
  }

  std::string_view text_, layer_;
  std::size_t position_;
  std::vector<Argument> arguments_;
  std::vector<std::string_view> names_;
};

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::vector<LayerSpec> parse() {
    std::vector<LayerSpec> layers = sequence();
    if (position_ != text_.size()) fail_at(text_, position_, "expected a layer");
    if (layers.empty()) fail_at(text_, position_, "expected at least one layer");
    return layers;
  }

 private:
  std::vector<LayerSpec> sequence() {
    std::vector<LayerSpec> layers;
    for (skip_space(); is_letter(peek()); skip_space()) layers.push_back(layer());
    return layers;
  }

  LayerSpec layer() {
    const std::size_t start = position_;
    const std::string_view name = word();
    if (std::find(kLayerNames.begin(), kLayerNames.end(), name) == kLayerNames.end())
      fail_at(text_, start, "unknown layer \"{}\"{}", name, did_you_mean(name, kLayerNames));
    if (name == "residual") return {residual()};
    Arguments arguments(text_, name, start, argument_list());
    LayerSpec spec = plain_layer(name, arguments);
    arguments.finish();
    return spec;
  }

  static LayerSpec plain_layer(std::string_view name, Arguments& arguments) {
    if (name == "conv2d") {
      Conv2dSpec conv;
      conv.channels = arguments.count("channels", 1);
      conv.kernel = arguments.count("kernel", 1);
      conv.stride = arguments.count("stride", 1, 1);
      conv.padding = arguments.count("pad", 0, 0);
      conv.bias = arguments.flag("bias", true);
      return {conv};
    }
    if (name == "linear") {
      LinearSpec linear;
      linear.features = arguments.count("features", 1);
      linear.bias = arguments.flag("bias", true);
      return {linear};
    }
    if (name == "maxpool") {
      MaxPoolSpec pool;
      pool.window = arguments.count("window", 1);
      pool.stride = arguments.count("stride", 1, pool.window);
      return {pool};
    }
    if (name == "dropout") return {DropoutSpec{arguments.probability("probability")}};
    if (name == "relu") return {ReluSpec{}};
    if (name == "global_average_pool") return {GlobalAveragePoolSpec{}};
    if (name == "batch_norm") return {BatchNormSpec{}};
    return {FlattenSpec{}};
  }

  ResidualSpec residual() {
    ResidualSpec spec;
    expect('[', "after \"residual\"");
    spec.main = sequence();
    if (spec.main.empty()) fail_at(text_, position_, "expected a layer of the residual's main branch");
    if (peek() == '|') {
      ++position_;
      spec.shortcut = sequence();
      if (spec.shortcut.empty())
        fail_at(text_, position_,
                "expected a layer of the residual's shortcut; leave \"|\" out for the identity");
    }
    expect(']', "or a layer");
    return spec;
  }

  std::vector<Argument> argument_list() {
    std::vector<Argument> arguments;
    skip_space();
    if (peek() != '(') return arguments;
    do {
      ++position_;
      skip_space();
      Argument argument;
      argument.position = position_;
      if (is_letter(peek())) {
        argument.name = word();
        for (const Argument& earlier : arguments)
          if (earlier.name == argument.name)
            fail_at(text_, argument.position, "\"{}\" is given twice", argument.name);
        expect('=', "after the name of an argument");
        skip_space();
      } else if (!arguments.empty() && !arguments.back().name.empty()) {
        fail_at(text_, position_, "arguments by position come before those by name");
      }
      argument.value = number();
      arguments.push_back(argument);
      skip_space();
    } while (peek() == ',');
    expect(')', "or \",\"");
    return arguments;
  }

  double number() {
    double value = 0;
    const char* begin = text_.data() + position_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc() || !std::isfinite(value)) fail_at(text_, position_, "expected a number");
    position_ += static_cast<std::size_t>(end - begin);
    return value;
  }

  std::string_view word() {
    const std::size_t start = position_;
    while (is_letter(peek()) || (peek() >= '0' && peek() <= '9')) ++position_;
    return text_.substr(start, position_ - start);
  }

  void expect(char character, const char* context) {
    skip_space();
    if (peek() != character) fail_at(text_, position_, "expected \"{}\" {}", character, context);
    ++position_;
  }

  void skip_space() {
    while (position_ < text_.size()) {
      if (peek() == '#')
        position_ = std::min(text_.find('\n', position_), text_.size());
      else if (std::string_view(" \t\r\n").find(peek()) == std::string_view::npos)
        return;
      else
        ++position_;
    }
  }

  /// The next character, or 0 at the end.
  char peek() const { return position_ < text_.size() ? text_[position_] : '\0'; }

  static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

  std::string_view text_;
  std::size_t position_ = 0;
};

}  // namespace

std::vector<LayerSpec> parse_model_spec(std::string_view text) { return Parser(text).parse(); }

}  // namespace annulus
