#include "tools/local_launcher.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>

#include "core/base/error.h"
#include "nccl/file_descriptor.h"
#include "nccl/shared_memory_communicator.h"
#include "tools/failure_report.h"

namespace annulus {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// After the first failure the others learn of it from their communicator and end by themselves.
constexpr auto kGrace = 3s;
constexpr auto kTermination = 2s;  // from SIGTERM to SIGKILL
constexpr auto kEcho = 300ms;      // timeout(1) and some shells signal the process and then its group

struct Rank {
  int rank = 0;
  pid_t pid = -1;
  std::optional<int> status;  // of waitpid(2), once it has ended
  bool signalled = false;     // we sent it the signal that may have ended it
};

bool failed(const Rank& rank) { return rank.status.has_value() && *rank.status != 0; }
bool killed(const Rank& rank) { return failed(rank) && WIFSIGNALED(*rank.status) && !rank.signalled; }

int exit_status(const Rank& rank) {
  return WIFSIGNALED(*rank.status) ? 128 + WTERMSIG(*rank.status) : WEXITSTATUS(*rank.status);
}

// "9 (Killed)".
std::string signal_name(int signal) { return fmt::format("{} ({})", signal, strsignal(signal)); }

[[noreturn]] void fail_call(const char* call) { fail<Error>("{} failed: {}", call, std::strerror(errno)); }

// This process's environment with some variables set.
std::vector<std::string> environment_with(const std::vector<std::pair<std::string, int>>& settings) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto overrides = [&](const auto& setting) {
      return text.substr(0, text.find('=')) == setting.first;
    };
    if (std::none_of(settings.begin(), settings.end(), overrides)) environment.emplace_back(text);
  }
  for (const auto& [name, value] : settings) environment.push_back(fmt::format("{}={}", name, value));
  return environment;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

class Launcher {
 public:
  Launcher(std::string_view program, int ranks) : program_(program), ranks_(static_cast<std::size_t>(ranks)) {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
    if (sigprocmask(SIG_BLOCK, &signals, &old_mask_) != 0) fail_call("sigprocmask");
    signals_ = FileDescriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    if (signals_.get() < 0) fail_call("signalfd");
  }
  ~Launcher() {
    signal_all(SIGKILL);
    for (const Rank& rank : ranks_) {
      if (rank.pid > 0 && !rank.status) waitpid(rank.pid, nullptr, 0);
    }
    sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  void start(const std::vector<std::string>& arguments);
  void supervise();
  int conclude() const;

 private:
  void start_rank(Rank& rank, char* const* arguments, int pipe, int segment);
  void read_signals();
  void read_reports();
  void reap();
  void stop_survivors();
  void signal_all(int signal);
  bool all_ended() const {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const Rank& rank) { return rank.status.has_value(); });
  }
  const Rank& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  int say(const std::string& text, int status) const {
    fmt::print(stderr, "{}: {}\n", program_, text);
    return status;
  }

  std::string program_;
  std::vector<Rank> ranks_;
  std::vector<int> ended_;  // ranks in the order in which they ended
  std::vector<FailureReport> reports_;
  std::string received_;  // from the pipe, not yet a whole report
  FileDescriptor signals_;
  FileDescriptor pipe_;
  sigset_t old_mask_{};
  int stop_signal_ = 0;  // the signal that told this process to stop
  Clock::time_point stop_time_;
  std::optional<Clock::time_point> failure_time_;
  int sent_ = 0;  // what stop_survivors() has sent last
};

void Launcher::start(const std::vector<std::string>& arguments) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail_call("pipe2");
  pipe_ = FileDescriptor(ends[0]);
  const FileDescriptor write_end(ends[1]);
  fcntl(pipe_.get(), F_SETFL, O_NONBLOCK);
  const FileDescriptor segment(make_shared_segment(static_cast<int>(ranks_.size())));
  std::vector<std::string> texts{program_};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    ranks_[i].rank = static_cast<int>(i);
    start_rank(ranks_[i], pointers(texts).data(), write_end.get(), segment.get());
  }
}

void Launcher::start_rank(Rank& rank, char* const* arguments, int pipe, int segment) {
  const int ranks = static_cast<int>(ranks_.size());
  std::vector<std::string> environment = environment_with({{"RANK", rank.rank},
                                                           {"LOCAL_RANK", rank.rank},
                                                           {"WORLD_SIZE", ranks},
                                                           {"LOCAL_WORLD_SIZE", ranks},
                                                           {"ANNULUS_SEGMENT_FD", segment},
                                                           {kFailurePipeVariable, pipe}});
  const std::vector<char*> variables = pointers(environment);
  const pid_t parent = getpid();
  rank.pid = fork();
  if (rank.pid < 0) fail_call("fork");
  if (rank.pid > 0) return;

  // The child. It dies with its parent, also if that died before the request.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(EXIT_FAILURE);
  sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
  fcntl(segment, F_SETFD, 0);
  fcntl(pipe, F_SETFD, 0);
  execve("/proc/self/exe", arguments, variables.data());
  fmt::print(stderr, "{}: cannot start rank {}: {}\n", program_, rank.rank, std::strerror(errno));
  _exit(127);
}

void Launcher::supervise() {
  while (!all_ended()) {
    pollfd sources[] = {{signals_.get(), POLLIN, 0}, {pipe_.get(), POLLIN, 0}};
    poll(sources, 2, failure_time_ ? 50 : -1);
    read_signals();
    read_reports();
    reap();
    if (failure_time_) stop_survivors();
  }
  read_reports();
}

void Launcher::read_signals() {
  signalfd_siginfo received{};
  while (read(signals_.get(), &received, sizeof(received)) == sizeof(received)) {
    const int signal = static_cast<int>(received.ssi_signo);
    if (signal == SIGCHLD) continue;
    if (stop_signal_ == 0) {
      stop_signal_ = signal;
      stop_time_ = Clock::now();
      // A terminal sends to the whole foreground group: the ranks have it already.
      if (received.ssi_code != SI_KERNEL) signal_all(signal);
    } else if (Clock::now() - stop_time_ > kEcho) {
      signal_all(SIGKILL);
    }
  }
}

void Launcher::read_reports() {
  char buffer[4096];
  for (ssize_t size; (size = read(pipe_.get(), buffer, sizeof(buffer))) > 0;) {
    received_.append(buffer, static_cast<std::size_t>(size));
  }
  for (FailureReport& report : take_failures(received_)) {
    if (report.rank >= 0 && report.rank < static_cast<int>(ranks_.size()))
      reports_.push_back(std::move(report));
  }
}

void Launcher::reap() {
  for (Rank& rank : ranks_) {
    int status = 0;
    if (rank.status || waitpid(rank.pid, &status, WNOHANG) != rank.pid) continue;
    rank.status = status;
    ended_.push_back(rank.rank);
    if (failed(rank) && !failure_time_) failure_time_ = Clock::now();
  }
}

void Launcher::stop_survivors() {
  const auto since = Clock::now() - *failure_time_;
  const int due = since > kGrace + kTermination ? SIGKILL : since > kGrace ? SIGTERM : 0;
  if (due == sent_) return;
  sent_ = due;
  signal_all(due);
}

void Launcher::signal_all(int signal) {
  for (Rank& rank : ranks_) {
    if (rank.pid <= 0 || rank.status) continue;
    rank.signalled = true;
    kill(rank.pid, signal);
  }
}

// One line for what came first: what a rank says of itself, then how it ended, then what others say of it.
int Launcher::conclude() const {
  const auto report_of = [&](FailureKind kind) {
    const auto found = std::find_if(reports_.begin(), reports_.end(),
                                    [kind](const FailureReport& report) { return report.kind == kind; });
    return found == reports_.end() ? nullptr : &*found;
  };
  const auto first_ended = [&](const auto& property) {
    const auto found =
        std::find_if(ended_.begin(), ended_.end(), [&](int rank) { return property(at(rank)); });
    return found == ended_.end() ? nullptr : &at(*found);
  };
  const auto reported = [&](const Rank& rank) {
    return std::any_of(reports_.begin(), reports_.end(),
                       [&](const FailureReport& report) { return report.rank == rank.rank; });
  };
  const auto tell = [&](const FailureReport& report) {
    const Rank& rank = at(report.rank);
    return say(fmt::format("rank {}: {}", report.rank, report.text),
               failed(rank) && !WIFSIGNALED(*rank.status) ? exit_status(rank) : EXIT_FAILURE);
  };

  if (const FailureReport* own = report_of(FailureKind::own)) return tell(*own);
  const Rank* const first = first_ended(failed);
  if (first == nullptr) return EXIT_SUCCESS;
  if (stop_signal_ != 0) {
    const int status = 128 + stop_signal_;
    const bool orderly = std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
      return !failed(rank) || (WIFEXITED(*rank.status) && exit_status(rank) == status);
    });
    return orderly ? status : say(fmt::format("stopped by signal {}", signal_name(stop_signal_)), status);
  }
  if (const Rank* rank = first_ended(killed)) {
    const int signal = WTERMSIG(*rank->status);
    return say(
        fmt::format("rank {} (pid {}) was killed by signal {}{}; the other ranks were stopped", rank->rank,
                    rank->pid, signal_name(signal), signal == SIGKILL ? ", perhaps for lack of memory" : ""),
        exit_status(*rank));
  }
  if (const Rank* rank = first_ended([&](const Rank& candidate) {
        return failed(candidate) && !candidate.signalled && !reported(candidate);
      })) {
    return say(fmt::format("rank {} (pid {}) ended with status {}; the other ranks were stopped", rank->rank,
                           rank->pid, exit_status(*rank)),
               exit_status(*rank));
  }
  if (const FailureReport* communication = report_of(FailureKind::communication)) return tell(*communication);
  return say(fmt::format("rank {} failed", first->rank), exit_status(*first));
}

}  // namespace

int launch_local_ranks(std::string_view program, int ranks, const std::vector<std::string>& arguments) {
  Launcher launcher(program, ranks);
  launcher.start(arguments);
  launcher.supervise();
  return launcher.conclude();
}

}  // namespace annulus
