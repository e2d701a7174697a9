#include "tools/train_command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>
#include <type_traits>

#include "core/base/device.h"
#include "core/base/error.h"
#include "core/base/nearest_name.h"
#include "tools/train_config.h"

namespace annulus {
namespace {

constexpr const char* kDescription =
    "Trains an image classifier with the gradients summed over all ranks, saves checkpoints that resume on\n"
    "any number of ranks and any device, and reports every step.";

constexpr const char* kExamples =
    "Examples:\n"
    "  annulus-train --ranks 2 --epochs 5 --micro-batches 8 --checkpoint-dir runs/cnn\n"
    "  annulus-train --ranks 4 --checkpoint-dir runs/cnn --resume auto --epochs 10\n"
    "  annulus-train --resume runs/cnn/step-000004690.h5 --eval-only\n"
    "  annulus-train --model mlp --data synthetic:28x28x1 --optimizer adamw --lr 0.001\n";

/// Wraps explanations, which CLI11's own formatter leaves as they are.
class WrappingFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    constexpr std::size_t indent = 26, width = 100;
    std::string line = "  " + make_option_name(option, is_positional) + make_option_opts(option);
    std::string text;
    std::istringstream words(make_option_desc(option));
    const auto start_column = [&] {
      if (line.size() + 2 > indent) {
        text += line + "\n";
        line.clear();
      }
      line.resize(indent, ' ');
    };
    start_column();
    for (std::string word; words >> word;) {
      if (line.size() + 1 + word.size() > width) start_column();
      line += (line.size() > indent ? " " : "") + word;
    }
    return text + line + "\n";
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_type_name().empty() ? "" : " " + option->get_type_name();
  }
};

template <class T>
std::string default_text(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return value.empty() ? "" : fmt::format(" [{}]", value);
  } else {
    return fmt::format(" [{}]", value);
  }
}

/// CLI11 itself takes -1 and all that is too large for the largest number there is.
std::string check_count(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool fits = error == std::errc() && end == text.data() + text.size();
  return fits ? "" : fmt::format("must be a whole number below 2^64, not \"{}\"", text);
}

std::string check_number(const std::string& text) {
  double value = 0;
  return CLI::detail::lexical_cast(text, value) ? "" : fmt::format("must be a number, not \"{}\"", text);
}

void add_options(CLI::App& app, TrainOptions& options) {
  visit_options(options, [&](const OptionInfo& info, auto& value) {
    using T = std::remove_reference_t<decltype(value)>;
    const std::string name = std::string("--") + info.name;
    if constexpr (std::is_same_v<T, bool>) {
      app.add_flag(name, value, info.help)->group(info.group);
    } else {
      CLI::Option* option = app.add_option(name, value, info.help + default_text(value));
      option->group(info.group)->type_name(info.value);
      if constexpr (std::is_integral_v<T>) option->check(check_count);
      if constexpr (std::is_floating_point_v<T>) option->check(check_number);
    }
  });
}

std::string version_text() {
  std::string text = "annulus-train " ANNULUS_VERSION "\ndevices: cpu";
  for (int k = 0; k < cuda_device_count(); ++k) text += " " + Device::cuda(k).to_string();
  if (cuda_device_count() == 0) text += " (" + cuda_unavailable_reason() + ")";
  return text + "\n";
}

/// The first argument that is no option, in words for the user.
[[noreturn]] void refuse(const CLI::App& app, const std::string& argument) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) known.push_back(option->get_name());
  const std::vector<std::string_view> names(known.begin(), known.end());
  const std::string name = argument.substr(0, argument.find('='));
  require<ConfigError>(name.starts_with("-"), "unexpected argument \"{}\"; options start with --", argument);
  fail<ConfigError>("there is no option {}{}", name, did_you_mean(name, names));
}

}  // namespace

CommandLine parse_command_line(const std::vector<std::string>& arguments,
                               const nlohmann::ordered_json* recipe) {
  CommandLine result;
  std::string config;

  // Twice: to find --config, and again on top of what that file says.
  const auto parse = [&] {
    CLI::App app(kDescription, "annulus-train");
    app.formatter(std::make_shared<WrappingFormatter>());
    app.footer(kExamples);
    app.set_help_flag();
    bool help = false, version = false;
    add_options(app, result.options);
    app.add_option("--config", config,
                   "Take options from this JSON file, such as the config.json of another run")
        ->group("Output")
        ->type_name("FILE")
        ->check([](const std::string& path) { return path.empty() ? "needs the name of a file" : ""; });
    app.add_flag("--version", version, "Print the version and the devices this program can use")
        ->group("Output");
    app.add_flag("-h,--help", help, "Print this text")->group("Output");
    app.allow_extras();
    try {
      app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    } catch (const CLI::ArgumentMismatch& error) {
      const std::string message = error.what();  // "--option: 1 required N missing"
      fail<ConfigError>("{} takes one value", message.substr(0, message.find(':')));
    } catch (const CLI::ParseError& error) {
      fail<ConfigError>("{}", error.what());
    }
    if (const auto extras = app.remaining(); !extras.empty()) refuse(app, extras.front());
    if (help) result.answer = app.help();
    if (version) result.answer = version_text();
  };

  parse();
  if (result.answer) return result;
  if (recipe == nullptr && config.empty()) return result;
  result.options = TrainOptions();
  if (recipe != nullptr) apply_json(*recipe, "the recipe in the checkpoint", result.options);
  if (!config.empty()) apply_json(read_config_file(config), config, result.options);
  parse();
  return result;
}

}  // namespace annulus
