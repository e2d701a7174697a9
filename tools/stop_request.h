// Ctrl-C and its kind as a request that the run looks at between two steps.
#pragma once

namespace annulus {

/// From now on SIGINT, SIGTERM and SIGHUP are remembered instead of ending the process. With `once`, a second
/// signal ends it in the usual way; without, whoever started the process takes care of that.
void catch_stop_signals(bool once);

/// The signal that asked this process to stop, or 0.
int stop_signal();

}  // namespace annulus
