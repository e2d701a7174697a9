#include "tools/train_config.h"

#include <fstream>
#include <string>
#include <type_traits>
#include <vector>

#include "core/base/error.h"
#include "core/base/nearest_name.h"

namespace annulus {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
void read_value(const Json& value, std::string_view source, const char* name, T& out) {
  bool fits = false;
  const char* expected = "";
  if constexpr (std::is_same_v<T, std::string>) {
    fits = value.is_string();
    expected = "a string";
  } else if constexpr (std::is_same_v<T, bool>) {
    fits = value.is_boolean();
    expected = "true or false";
  } else if constexpr (std::is_same_v<T, double>) {
    fits = value.is_number();
    expected = "a number";
  } else {
    fits = value.is_number_unsigned() || (value.is_number_integer() && value.get<std::int64_t>() >= 0);
    expected = "a whole number, 0 or more";
  }
  require<ConfigError>(fits, "{}: \"{}\" must be {}, not {}", source, name, expected, value.dump());
  out = value.get<T>();
}

}  // namespace

Json options_to_json(const TrainOptions& options) {
  Json json = Json::object();
  visit_options(options, [&](const OptionInfo& info, const auto& value) { json[info.name] = value; });
  return json;
}

Json recipe_to_json(const TrainOptions& options) {
  Json json = Json::object();
  visit_options(options, [&](const OptionInfo& info, const auto& value) {
    if (info.scope == OptionScope::recipe) json[info.name] = value;
  });
  return json;
}

void apply_json(const Json& json, std::string_view source, TrainOptions& options) {
  require<ConfigError>(json.is_object(), "{}: expected an object of options, {{\"model\": \"cnn\", ...}}",
                       source);
  std::vector<std::string_view> names;
  visit_options(options, [&](const OptionInfo& info, auto& value) {
    names.push_back(info.name);
    if (const auto entry = json.find(info.name); entry != json.end()) {
      read_value(*entry, source, info.name, value);
    }
  });
  for (const auto& [key, value] : json.items()) {
    if (std::find(names.begin(), names.end(), key) == names.end()) {
      fail<ConfigError>("{}: there is no option \"{}\"{}", source, key, did_you_mean(key, names));
    }
  }
}

Json read_config_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  require<FileError>(file.good() && !std::filesystem::is_directory(path),
                     "cannot read the configuration file {}", path.string());
  const Json json = Json::parse(file, nullptr, /*allow_exceptions=*/false, /*ignore_comments=*/true);
  require<ConfigError>(!json.is_discarded(), "{} is not valid JSON", path.string());
  return json;
}

}  // namespace annulus
