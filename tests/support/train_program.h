// Runs annulus-train in tests, and reads what it leaves behind.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "tests/support/process.h"

namespace annulus::test {

inline const std::string kTrainProgram = ANNULUS_BINARY_DIR "/tools/annulus-train";

/// No launcher of the machine that runs the tests may leak into them.
inline std::map<std::string, std::string> without_launcher() {
  std::map<std::string, std::string> environment;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
                           "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "ANNULUS_SEGMENT_FD"}) {
    environment.emplace(name, "-");
  }
  return environment;
}

inline std::vector<std::string> train_command(const std::vector<std::string>& options) {
  std::vector<std::string> command = {kTrainProgram};
  command.insert(command.end(), options.begin(), options.end());
  return command;
}

inline ProcessResult train(const std::vector<std::string>& arguments, const std::string& directory = ".") {
  return run_program(train_command(arguments), without_launcher(), directory);
}

/// The options of a run with others added or, where a name is there already, in its place.
inline std::vector<std::string> with(std::vector<std::string> options,
                                     const std::vector<std::string>& others) {
  for (const std::string& word : others) {
    const auto old = std::find(options.begin(), options.end(), word);
    if (word.starts_with("--") && old != options.end()) options.erase(old, old + 2);
  }
  options.insert(options.end(), others.begin(), others.end());
  return options;
}

/// A small model that has every kind of state: convolution, running moments, dropout.
inline const std::vector<std::string> kSmallRun = {
    "--model",      "conv2d(4,3,pad=1) batch_norm relu maxpool(2) flatten dropout(0.2) linear(10)",
    "--data",       "synthetic:8x8x1,samples=200",
    "--device",     "cpu",
    "--batch-size", "32",
    "--epochs",     "4"};

/// The objects of a metrics file whose "event" is `event`.
inline std::vector<nlohmann::json> read_metrics(const std::string& path, const std::string& event) {
  std::vector<nlohmann::json> events;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    nlohmann::json object = nlohmann::json::parse(line);
    if (object.at("event") == event) events.push_back(std::move(object));
  }
  return events;
}

/// The checksum of every tensor in a checkpoint, by name: equal for equal bits.
inline std::map<std::string, std::uint32_t> checksums(const std::string& path) {
  const CheckpointReader reader(path);
  reader.verify();
  std::map<std::string, std::uint32_t> sums;
  for (const TensorRecord& record : reader.tensors()) sums[record.name] = record.crc32c;
  return sums;
}

/// Names of everything below a folder.
inline std::vector<std::string> list_files(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    names.push_back(std::filesystem::relative(entry.path(), folder).string());
  }
  return names;
}

inline std::size_t count_lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace annulus::test
