#include "tools/metrics_writer.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/base/error.h"

namespace annulus {
namespace {

/// As a run leaves it that was killed, or found the disk full.
bool ends_in_half_a_line(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || file.tellg() <= 0) return false;
  file.seekg(-1, std::ios::end);
  return file.get() != '\n';
}

}  // namespace

MetricsWriter::MetricsWriter(const std::filesystem::path& path, bool append)
    : path_(path), file_(std::fopen(path.c_str(), append ? "ae" : "we")) {
  require<FileError>(file_ != nullptr, "cannot write metrics to {}: {}", path.string(), std::strerror(errno));
  if (append && ends_in_half_a_line(path)) fmt::print(file_.get(), "\n");
}

void MetricsWriter::step(const StepRecord& record) {
  if (!file_) return;
  const StepResult& result = record.result;
  const StepTimes& times = result.times;
  // Formatted by hand: this line is written in every step, and allocates nothing.
  fmt::print(file_.get(),
             R"({{"event":"step","epoch":{},"step":{},"loss":{:.9g},"hits":{},"samples":{},)"
             R"("learning_rate":{:.6g},"samples_per_second":{:.1f},"seconds":{:.6f},"input":{:.6f},)"
             R"("forward":{:.6f},"backward":{:.6f},"communication":{:.6f},"update":{:.6f}}})"
             "\n",
             record.epoch, record.step, result.mean_loss(), result.hits, result.samples, record.learning_rate,
             record.seconds > 0 ? static_cast<double>(result.samples) / record.seconds : 0.0, record.seconds,
             times.input, times.forward, times.backward, times.communication, times.update);
  flush(false);
}

void MetricsWriter::event(const char* event, const nlohmann::ordered_json& fields) {
  if (!file_) return;
  nlohmann::ordered_json line = {{"event", event}};
  line.update(fields);
  fmt::print(file_.get(), "{}\n", line.dump());
  flush(true);
}

void MetricsWriter::flush(bool now) {
  // Whoever follows the file sees it grow, without a system call in every step.
  const auto time = std::chrono::steady_clock::now();
  if (!now && time - flushed_ < std::chrono::seconds(1)) return;
  require<FileError>(std::fflush(file_.get()) == 0, "cannot write metrics to {}: {}", path_.string(),
                     std::strerror(errno));
  flushed_ = time;
}

}  // namespace annulus
