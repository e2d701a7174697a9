#include "tools/stop_request.h"

#include <csignal>
#include <initializer_list>

namespace annulus {
namespace {

volatile std::sig_atomic_t received = 0;  // a signal handler can reach nothing but a global

void remember(int signal) { received = signal; }

}  // namespace

void catch_stop_signals(bool once) {
  struct sigaction action = {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART | (once ? static_cast<int>(SA_RESETHAND) : 0);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
}

int stop_signal() { return received; }

}  // namespace annulus
