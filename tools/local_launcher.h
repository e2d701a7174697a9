// Starts the ranks of a run as processes of this host, watches them and tells what went wrong, once.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace annulus {

/// Runs this very program `ranks` times with `arguments` (without the program's name), as ranks that
/// detect_rank_environment() recognises, and returns when all have ended: 0 if all succeeded, otherwise the
/// exit status of the rank that failed first (128 + signal if a signal killed it) after one line on stderr,
/// "<program>: ...", that says what happened. After the first failure the others get a few seconds to stop by
/// themselves, then SIGTERM, then SIGKILL. SIGINT, SIGTERM and SIGHUP are passed on; a second one kills.
/// No rank outlives this process, even when it is killed.
int launch_local_ranks(std::string_view program, int ranks, const std::vector<std::string>& arguments);

/// For a rank that is about to exit with a failure: under launch_local_ranks() hands `error` to the launcher,
/// which prints the one that came first; otherwise prints it on stderr as "<program>: rank R: <message>",
/// unless another rank reports the failure (RelayedError). Without other ranks, leave `rank` negative.
void report_failure(std::string_view program, int rank, const std::exception& error) noexcept;

}  // namespace annulus
