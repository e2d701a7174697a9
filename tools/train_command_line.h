// The command line of annulus-train. An option's value comes from the command line, else from the file that
// --config names, else from the checkpoint that is resumed, else it is the default.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/train_options.h"

namespace annulus {

struct CommandLine {
  TrainOptions options;
  std::optional<std::string> answer;  ///< what --help or --version asked for: print it and be done
};

/// Reads the arguments (without the program's name). `recipe` is that of the checkpoint that is resumed, or
/// null. Throws ConfigError, with the nearest name for an unknown option, and FileError for a configuration
/// file that cannot be read. Values are not checked; check_options() does that.
CommandLine parse_command_line(const std::vector<std::string>& arguments,
                               const nlohmann::ordered_json* recipe = nullptr);

}  // namespace annulus
