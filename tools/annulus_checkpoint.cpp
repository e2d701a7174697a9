// annulus-checkpoint: looks into checkpoints and makes new ones of them.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/nearest_name.h"
#include "io/checkpoint_directory.h"
#include "tools/checkpoint_commands.h"

namespace annulus {
namespace {

constexpr int kDifferent = 1;  // as diff(1) and cmp(1) have it
constexpr int kTrouble = 2;

// A directory stands for its newest checkpoint.
std::filesystem::path file_of(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return path;
  const CheckpointDirectory directory(path);
  if (const auto latest = directory.latest()) return *latest;
  const std::vector<std::int64_t> steps = directory.steps();
  require<CheckpointError>(!steps.empty(), "{}: there is no checkpoint in this directory", path);
  return directory.file_of(steps.front());
}

// CLI11 would only complain that a command is missing.
void check_command(const CLI::App& app, std::string_view command) {
  std::vector<std::string> names;
  for (const CLI::App* known : app.get_subcommands({})) names.push_back(known->get_name());
  const std::vector<std::string_view> views(names.begin(), names.end());
  require<ConfigError>(command.starts_with('-') || std::ranges::count(views, command) > 0,
                       "unknown command \"{}\"; the commands are {}{}", command, fmt::join(names, ", "),
                       did_you_mean(command, views));
}

int run(int argc, char** argv) {
  CLI::App app(
      "Looks into checkpoints of Annulus and rewrites them. Wherever a FILE is expected, a checkpoint "
      "directory stands for its newest file.",
      "annulus-checkpoint");
  app.require_subcommand(1);
  std::vector<std::string> files;
  bool as_json = false;

  CLI::App* inspect =
      app.add_subcommand("inspect", "Show training state, tensors, shapes, sizes and device tags");
  inspect->add_option("FILE", files)->required()->expected(1);
  inspect->add_flag("--json", as_json, "Print JSON");
  CLI::App* verify =
      app.add_subcommand("verify", "Read everything and compare checksums; exit 1 if a file is damaged");
  verify->add_option("FILE", files)->required();
  CLI::App* diff =
      app.add_subcommand("diff", "Compare two checkpoints tensor by tensor; exit 1 if they differ");
  diff->add_option("FILE", files)->required()->expected(2);
  std::string in, out, map;
  CLI::App* remap = app.add_subcommand("remap", "Write a checkpoint anew with other device tags");
  remap->add_option("FILE", in)->required();
  remap->add_option("OUT", out, "The new checkpoint; must not exist yet")->required();
  remap->add_option("--map", map, "cpu, cuda:K, or tag by tag: cuda:0=cuda:1,*=cpu (* is every other tag)")
      ->required();
  CLI::App* convert =
      app.add_subcommand("convert", "Write the model's parameters and buffers for other programs");
  convert->add_option("FILE", in)->required();
  convert->add_option("OUT", out, "The new file, NAME.safetensors or NAME.npz; must not exist yet")
      ->required();

  if (argc > 1) check_command(app, argv[1]);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    fail<ConfigError>("{}; see annulus-checkpoint --help", error.what());
  }

  std::vector<std::filesystem::path> paths;
  for (const std::string& file : files) paths.push_back(file_of(file));
  if (inspect->parsed()) inspect_checkpoint(paths[0], as_json);
  if (remap->parsed()) remap_checkpoint(file_of(in), out, map);
  if (convert->parsed()) export_model(file_of(in), out);
  const bool fine =
      verify->parsed() ? verify_checkpoints(paths) : !diff->parsed() || diff_checkpoints(paths[0], paths[1]);
  return fine ? EXIT_SUCCESS : kDifferent;
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) {
  try {
    return annulus::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "annulus-checkpoint: {}\n", error.what());
    return annulus::kTrouble;
  }
}
