// The name of this machine, as temporary files and checkpoints record it.
#pragma once

#include <unistd.h>

#include <string>

namespace annulus {

inline std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? std::string(name) : std::string("unknown");
}

}  // namespace annulus
