#include "tools/failure_report.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "nccl/communicator.h"
#include "tools/local_launcher.h"

namespace annulus {
namespace {

// A record is this, then `size` characters. Writes of up to PIPE_BUF bytes are never torn apart (pipe(7)).
struct RecordHeader {
  int rank;
  FailureKind kind;
  int size;
};
constexpr std::size_t kMaxText = PIPE_BUF - sizeof(RecordHeader);

}  // namespace

FailureKind kind_of(const std::exception& error) {
  if (dynamic_cast<const RelayedError*>(&error) != nullptr) return FailureKind::relayed;
  if (dynamic_cast<const CommunicationError*>(&error) != nullptr) return FailureKind::communication;
  return FailureKind::own;
}

bool send_failure(const FailureReport& report) noexcept {
  const char* const variable = std::getenv(kFailurePipeVariable);
  if (variable == nullptr) return false;
  const int pipe = std::atoi(variable);
  struct stat status {};
  if (fstat(pipe, &status) != 0 || !S_ISFIFO(status.st_mode)) return false;
  std::array<char, PIPE_BUF> record;
  const std::size_t size = std::min(report.text.size(), kMaxText);
  const RecordHeader header{report.rank, report.kind, static_cast<int>(size)};
  std::memcpy(record.data(), &header, sizeof(header));
  std::memcpy(record.data() + sizeof(header), report.text.data(), size);
  const std::size_t bytes = sizeof(header) + size;
  return write(pipe, record.data(), bytes) == static_cast<ssize_t>(bytes);
}

std::vector<FailureReport> take_failures(std::string& received) {
  std::vector<FailureReport> reports;
  std::size_t begin = 0;
  for (;;) {
    RecordHeader header{};
    if (received.size() - begin < sizeof(header)) break;
    std::memcpy(&header, received.data() + begin, sizeof(header));
    const std::size_t size = sizeof(header) + static_cast<std::size_t>(header.size);
    if (received.size() - begin < size) break;
    reports.push_back(
        {header.rank, header.kind, received.substr(begin + sizeof(header), size - sizeof(header))});
    begin += size;
  }
  received.erase(0, begin);
  return reports;
}

void report_failure(std::string_view program, int rank, const std::exception& error) noexcept {
  try {
    const FailureReport report{std::max(rank, 0), kind_of(error), error.what()};
    if (send_failure(report) || report.kind == FailureKind::relayed) return;
    if (rank < 0) {
      fmt::print(stderr, "{}: {}\n", program, report.text);
    } else {
      fmt::print(stderr, "{}: rank {}: {}\n", program, rank, report.text);
    }
  } catch (...) {  // no memory to format, or no stderr: the exit status is all that is left
  }
}

}  // namespace annulus
