// The metrics file: one JSON object a line, told apart by "event" (docs/metrics.md).
#pragma once

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/run_totals.h"

namespace annulus {

class MetricsWriter {
 public:
  /// Writes nowhere.
  MetricsWriter() = default;

  /// Starts the file anew, or goes on at its end. Throws FileError.
  MetricsWriter(const std::filesystem::path& path, bool append);

  /// Both throw FileError when the file cannot take it; what is told of a step may be found out in a later
  /// call.
  void step(const StepRecord& record);

  /// {"event": event, ...fields}
  void event(const char* event, const nlohmann::ordered_json& fields);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  void flush(bool now);

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::chrono::steady_clock::time_point flushed_;
};

}  // namespace annulus
