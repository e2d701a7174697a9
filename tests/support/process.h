// Runs programs as a user does: arguments, environment, output, exit status, signals.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/temporary_directory.h"

namespace annulus::test {

struct ProcessResult {
  int status = 0;  ///< exit status; 128 + signal if a signal ended it; -1 if it had to be killed for its time
  std::string out, err;
};

/// A running program in a process group of its own. What it started is killed with it.
class Process {
 public:
  /// `environment` adds to this process's. A variable that is set to "-" is removed.
  explicit Process(std::vector<std::string> command,
                   const std::map<std::string, std::string>& environment = {},
                   const std::string& directory = ".") {
    const std::string out = files_ / "out", err = files_ / "err";
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("cannot fork");
    if (pid_ > 0) return;
    setpgid(0, 0);
    redirect(STDIN_FILENO, "/dev/null", O_RDONLY);
    redirect(STDOUT_FILENO, out, O_WRONLY | O_CREAT);
    redirect(STDERR_FILENO, err, O_WRONLY | O_CREAT);
    for (const auto& [name, value] : environment) {
      value == "-" ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
    }
    std::vector<char*> argv;
    for (std::string& word : command) argv.push_back(word.data());
    argv.push_back(nullptr);
    if (chdir(directory.c_str()) == 0) execvp(argv[0], argv.data());
    _exit(127);
  }
  ~Process() {
    if (pid_ > 0) wait(std::chrono::seconds(0));
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const { kill(pid_, number); }

  std::string out() const { return text(files_ / "out"); }
  std::string err() const { return text(files_ / "err"); }

  /// Waits until the output contains `text`; false if that takes too long or the program ends first.
  bool wait_for_output(const std::string& text, std::chrono::seconds limit = std::chrono::seconds(60)) const {
    return poll(limit, [&] { return out().find(text) != std::string::npos; });
  }

  /// Waits for the end and, after `limit`, brings it about.
  ProcessResult wait(std::chrono::seconds limit = std::chrono::seconds(120)) {
    int status = 0;
    const bool ended = poll(limit, [&] { return waitpid(pid_, &status, WNOHANG) == pid_; });
    kill(-pid_, SIGKILL);
    if (!ended) waitpid(pid_, &status, 0);
    pid_ = -1;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return {ended ? code : -1, out(), err()};
  }

 private:
  static void redirect(int descriptor, const std::string& path, int flags) {
    const int file = open(path.c_str(), flags, 0600);
    dup2(file, descriptor);
    close(file);
  }

  static std::string text(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  template <class Condition>
  static bool poll(std::chrono::seconds limit, const Condition& condition) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  TemporaryDirectory files_;
  pid_t pid_ = -1;
};

/// Runs a program to its end.
inline ProcessResult run_program(std::vector<std::string> command,
                                 const std::map<std::string, std::string>& environment = {},
                                 const std::string& directory = ".",
                                 std::chrono::seconds limit = std::chrono::seconds(120)) {
  return Process(std::move(command), environment, directory).wait(limit);
}

}  // namespace annulus::test
