// Every fault ends the process with one report on the standard error.
#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>

namespace virtual_gpu {

/// Prints "virtual GPU: ..." and where the device thread was, if one was running, and aborts.
[[noreturn]] void report_text(const std::string& text, const void* code);

/// `code` is an address in the code at fault, or null; it is printed as function and line where possible.
template <class... Arguments>
[[noreturn]] void report(const void* code, fmt::format_string<Arguments...> format,
                         Arguments&&... arguments) {
  report_text(fmt::format(format, std::forward<Arguments>(arguments)...), code);
}

}  // namespace virtual_gpu
