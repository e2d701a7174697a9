// What the programs of this folder share around their work: options and errors.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace annulus::bench {

/// Reads the options. Returns false after it has printed the help, if that was asked for. Throws
/// CLI::ParseError, whose text names the option.
bool parse_options(CLI::App& app, int argc, char** argv);

/// Writes a row of results to stdout at once: as one JSON object a line, or as `print` shows it to people.
void write_row(const nlohmann::json& row, bool as_json, void (*print)(const nlohmann::json& row));

/// Calls `run(argc, argv)` and returns its exit status, or prints what it throws in one line and returns 1.
int run_program(const char* name, int (*run)(int argc, char** argv), int argc, char** argv);

}  // namespace annulus::bench
