// The options of annulus-train as JSON: configuration files, and the recipe inside a checkpoint.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tools/train_options.h"

namespace annulus {

/// Every option, or those of one scope, in the order of the list.
nlohmann::ordered_json options_to_json(const TrainOptions& options);
nlohmann::ordered_json recipe_to_json(const TrainOptions& options);

/// Sets the options that `json` names and leaves the others alone. `source` is for messages. Throws
/// ConfigError for a key that is no option (and suggests the nearest) and for a value of the wrong type.
void apply_json(const nlohmann::ordered_json& json, std::string_view source, TrainOptions& options);

/// Reads a configuration file. Throws FileError if it cannot be read, ConfigError if it is not JSON.
nlohmann::ordered_json read_config_file(const std::filesystem::path& path);

}  // namespace annulus
