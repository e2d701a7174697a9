#include "tools/train_options.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"
#include "tools/train_command_line.h"
#include "tools/train_config.h"

namespace annulus {
namespace {

using test::expect_error;
using test::TemporaryDirectory;

std::string write_file(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
  return path;
}

TrainOptions parse(const std::vector<std::string>& arguments) {
  return parse_command_line(arguments).options;
}

TEST(TrainOptions, CommandLineWinsOverConfigOverRecipeOverDefault) {
  const TemporaryDirectory folder;
  const std::string config = write_file(folder / "c.json", R"({"lr": 0.2, "seed": 7, "drop-last": true})");
  const nlohmann::ordered_json recipe = {{"lr", 0.3}, {"epochs", 9}, {"seed", 8}};

  EXPECT_EQ(parse({}).lr, 0.05);
  EXPECT_EQ(parse({"--config", config}).lr, 0.2);
  EXPECT_EQ(parse({"--config", config, "--lr", "0.1"}).lr, 0.1);
  EXPECT_EQ(parse({"--lr=0.1", "--config=" + config}).lr, 0.1);
  EXPECT_TRUE(parse({"--config", config}).drop_last);
  EXPECT_FALSE(parse({"--config", config, "--drop-last=false"}).drop_last);

  const TrainOptions resumed = parse_command_line({"--config", config, "--momentum", "0.5"}, &recipe).options;
  EXPECT_EQ(resumed.lr, 0.2);
  EXPECT_EQ(resumed.seed, 7u);
  EXPECT_EQ(resumed.epochs, 9u);
  EXPECT_EQ(resumed.momentum, 0.5);
}

TEST(TrainOptions, JsonHoldsEveryOptionAndReadsBack) {
  TrainOptions options;
  options.model = "flatten linear(10)";
  options.lr = 0.1 + 0.2;
  options.seed = 18446744073709551615u;
  options.eval_only = true;
  options.checkpoint_dir = "a \"quoted\" path";
  const nlohmann::ordered_json json = options_to_json(options);
  TrainOptions read;
  apply_json(nlohmann::ordered_json::parse(json.dump()), "test", read);
  EXPECT_EQ(options_to_json(read), json);

  std::size_t count = 0;
  visit_options(options, [&](const OptionInfo& info, const auto&) { count += json.contains(info.name); });
  EXPECT_EQ(count, json.size());
  EXPECT_FALSE(recipe_to_json(options).contains("checkpoint-dir"));
  EXPECT_TRUE(recipe_to_json(options).contains("seed"));
}

TEST(TrainOptions, UnknownOptionsSuggestTheNearest) {
  expect_error<ConfigError>([] { parse({"--modle", "cnn"}); }, {"--modle", "--model"});
  expect_error<ConfigError>([] { parse({"--batchsize=3"}); }, {"--batchsize", "--batch-size"});
  expect_error<ConfigError>([] { parse({"--xyzzy", "3"}); }, {"--xyzzy"});
  expect_error<ConfigError>([] { parse({"cnn"}); }, {"cnn", "--"});
  expect_error<ConfigError>([] { parse({"--epochs"}); }, {"--epochs"});
  expect_error<ConfigError>([] { parse({"--epochs", "-5"}); }, {"--epochs", "-5"});
  expect_error<ConfigError>([] { parse({"--lr", "fast"}); }, {"--lr", "fast"});
}

TEST(TrainOptions, ConfigFilesAreChecked) {
  const TemporaryDirectory folder;
  const auto config = [&](const std::string& text) {
    return std::vector<std::string>{"--config", write_file(folder / "c.json", text)};
  };
  expect_error<FileError>([&] { parse({"--config", folder / "none.json"}); }, {"none.json"});
  expect_error<ConfigError>([&] { parse(config("{")); }, {"c.json", "JSON"});
  expect_error<ConfigError>([&] { parse(config("[]")); }, {"c.json", "object"});
  expect_error<ConfigError>([&] { parse(config(R"({"epoch": 3})")); }, {"c.json", "\"epoch\"", "\"epochs\""});
  expect_error<ConfigError>([&] { parse(config(R"({"epochs": "3"})")); },
                            {"c.json", "epochs", "whole number"});
  expect_error<ConfigError>([&] { parse(config(R"({"epochs": -3})")); }, {"epochs", "-3"});
  expect_error<ConfigError>([&] { parse(config(R"({"epochs": 1.5})")); }, {"epochs", "1.5"});
  expect_error<ConfigError>([&] { parse(config(R"({"model": 5})")); }, {"model", "string"});
  expect_error<ConfigError>([&] { parse(config(R"({"drop-last": 1})")); }, {"drop-last", "true or false"});
  EXPECT_EQ(parse(config(R"({"lr": 1})")).lr, 1.0);
}

TEST(TrainOptions, ValuesOutOfRangeAreRefused) {
  const auto check = [](const std::vector<std::string>& arguments) { check_options(parse(arguments)); };
  check({});
  expect_error<ConfigError>([&] { check({"--model", "cn"}); }, {"cn", "cnn"});
  expect_error<ConfigError>([&] { check({"--optimizer", "adam"}); }, {"adam", "adamw"});
  expect_error<ConfigError>([&] { check({"--precision", "fp16"}); }, {"--precision", "fp16", "bf16"});
  expect_error<ConfigError>([&] { check({"--schedule", "cosin"}); }, {"cosin", "cosine"});
  expect_error<ConfigError>([&] { check({"--device", "cdua"}); }, {"--device", "cdua", "cuda"});
  expect_error<ConfigError>([&] { check({"--augment", "rotate"}); }, {"--augment", "rotate", "crop-flip"});
  expect_error<ConfigError>([&] { check({"--map-location", "gpu"}); }, {"gpu"});
  for (const char* option : {"--epochs", "--batch-size", "--ranks", "--keep"}) {
    expect_error<ConfigError>([&] { check({option, "0"}); }, {option, "must be 1 to"});
  }
  expect_error<ConfigError>([&] { check({"--lr", "-1"}); }, {"--lr", "-1"});
  expect_error<ConfigError>([&] { check({"--lr", "nan"}); }, {"--lr", "nan"});
  expect_error<ConfigError>([&] { check({"--lr", "inf"}); }, {"--lr", "inf"});
  expect_error<ConfigError>([&] { check({"--momentum", "1"}); }, {"--momentum", "less than 1"});
  expect_error<ConfigError>([&] { check({"--label-smoothing", "1"}); }, {"--label-smoothing"});
  expect_error<ConfigError>([&] { check({"--schedule", "step"}); }, {"--decay-every"});
  expect_error<ConfigError>([&] { check({"--nesterov", "--momentum", "0"}); }, {"--momentum"});
  expect_error<ConfigError>([&] { check({"--resume", "auto"}); }, {"--checkpoint-dir"});
  expect_error<ConfigError>([&] { check({"--eval-only"}); }, {"--resume"});
  expect_error<ConfigError>([&] { check({"--save-every", "5"}); }, {"--checkpoint-dir"});
}

TEST(TrainOptions, HelpNamesEveryOptionWithinTheWidthOfATerminal) {
  const std::string help = parse_command_line({"--help"}).answer.value();
  visit_options(TrainOptions(), [&](const OptionInfo& info, const auto&) {
    EXPECT_NE(help.find(std::string("--") + info.name), std::string::npos) << info.name;
  });
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 105u) << line;
}

}  // namespace
}  // namespace annulus
