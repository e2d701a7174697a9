// What ranks do and decide together, so that a failure is reported once and no rank goes on alone.
#pragma once

#include <functional>
#include <string>

#include "nccl/communicator.h"

namespace annulus {

/// Runs `action`, which calls no collectives, on this rank; returns once every rank has run its own without
/// an exception. If any threw, all throw: the lowest rank that failed its own exception, which it is to
/// report, and the others RelayedError. Collective.
void together(Communicator& communicator, const std::function<void()>& action);

/// The text that rank 0 has. Collective.
std::string broadcast_text(Communicator& communicator, const std::string& text);

/// Whether any rank says yes. Collective.
bool any_rank(Communicator& communicator, bool yes);

}  // namespace annulus
