#include "report.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "block.h"

namespace virtual_gpu {
namespace {

// "function at file:line" of an address, from addr2line where it is installed.
std::string describe_code(const void* code) {
  Dl_info info;
  if (dladdr(code, &info) == 0 || info.dli_fname == nullptr) return fmt::format("{}", code);
  const auto offset =
      reinterpret_cast<std::uintptr_t>(code) - reinterpret_cast<std::uintptr_t>(info.dli_fbase) - 1;
  const std::string command = fmt::format("addr2line -Cpfe '{}' {:#x} 2>/dev/null", info.dli_fname, offset);
  std::string text;
  if (FILE* pipe = popen(command.c_str(), "r")) {
    char line[1024];
    while (std::fgets(line, sizeof line, pipe) != nullptr) text += line;
    pclose(pipe);
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.empty() ? fmt::format("{} + {:#x}", info.dli_fname, offset) : text;
}

}  // namespace

void report_text(const std::string& text, const void* code) {
  std::string message = fmt::format("virtual GPU: {}\n", text);
  if (code != nullptr) message += fmt::format("  in {}\n", describe_code(code));
  message += describe_current_thread();
  std::fputs(message.c_str(), stderr);
  std::fflush(stderr);
  std::abort();
}

}  // namespace virtual_gpu
