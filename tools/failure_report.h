// What a rank tells its launcher when it fails: one record in a pipe.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace annulus {

/// The environment variable that holds the pipe's descriptor in a rank.
inline constexpr const char* kFailurePipeVariable = "ANNULUS_FAILURE_FD";

/// Later kinds are consequences of earlier ones.
enum class FailureKind : int {
  own,            ///< of this rank alone
  communication,  ///< a peer is dead, stuck or disagrees
  relayed         ///< another rank reports it
};

struct FailureReport {
  int rank = -1;
  FailureKind kind = FailureKind::own;
  std::string text;
};

FailureKind kind_of(const std::exception& error);

/// Writes the report to the launcher's pipe in one piece; false if this process was not started by a
/// launcher.
bool send_failure(const FailureReport& report) noexcept;

/// Takes the complete records off the front of what was read from the pipe.
std::vector<FailureReport> take_failures(std::string& received);

}  // namespace annulus
