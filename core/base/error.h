// Typed errors. Every message says what was expected, what was found and what to do; the place that
// knows the rank puts "rank R: " in front when it prints one.
#pragma once

#ifdef __CUDACC__
// nvcc cannot evaluate fmt's compile-time check of format strings; g++ does it.
#define FMT_USE_CONSTEXPR 1
#define FMT_CONSTEVAL
#endif
#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace annulus {

/// Base of every error that Annulus throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An option, a configuration key, a model spec or an argument is wrong.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// Shapes, dtypes or devices of tensors do not fit each other.
class ShapeError : public Error {
 public:
  using Error::Error;
};

/// A device does not exist, is not available or failed; CUDA library errors end up here too.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// An operating system call on a file failed.
class FileError : public Error {
 public:
  using Error::Error;
};

/// A dataset is missing, truncated or inconsistent.
class DataError : public Error {
 public:
  using Error::Error;
};

/// A checkpoint is incomplete, damaged or does not fit the model.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// A peer died, hung or disagrees.
class CommunicationError : public Error {
 public:
  using Error::Error;
};

/// A loss, gradient or weight is NaN or infinite.
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

/// Throws E with a formatted message.
template <class E, class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw E(fmt::format(format, std::forward<Args>(args)...));
}

/// Throws E with a formatted message unless `condition` holds. The message is formatted only then.
template <class E, class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    fail<E>(format, std::forward<Args>(args)...);
}

}  // namespace annulus
