#include "bench/bench_program.h"

#include <fmt/core.h>

#include <cstdio>
#include <exception>

namespace annulus::bench {

bool parse_options(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::Success& help) {
    app.exit(help);
    return false;
  }
}

void write_row(const nlohmann::json& row, bool as_json, void (*print)(const nlohmann::json& row)) {
  if (as_json)
    fmt::print("{}\n", row.dump());
  else
    print(row);
  std::fflush(stdout);
}

int run_program(const char* name, int (*run)(int argc, char** argv), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
    return 1;
  }
}

}  // namespace annulus::bench
