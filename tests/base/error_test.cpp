#include "core/base/error.h"

#include <gtest/gtest.h>

#include <type_traits>

#include "tests/support/expect_error.h"

namespace annulus {
namespace {

TEST(Errors, AreAllErrors) {
  static_assert(std::is_base_of_v<Error, ConfigError> && std::is_base_of_v<Error, ShapeError>);
  static_assert(std::is_base_of_v<Error, DeviceError> && std::is_base_of_v<Error, FileError>);
  static_assert(std::is_base_of_v<Error, DataError> && std::is_base_of_v<Error, CheckpointError>);
  static_assert(std::is_base_of_v<Error, CommunicationError> && std::is_base_of_v<Error, NonFiniteError>);
  static_assert(std::is_base_of_v<std::runtime_error, Error>);
}

TEST(Fail, ThrowsTheFormattedMessage) {
  try {
    fail<DataError>("{}: expected {} bytes, found {}", "file", 3, 2);
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(), "file: expected 3 bytes, found 2");
  }
}

TEST(Require, ThrowsOnlyIfTheConditionFails) {
  EXPECT_NO_THROW(require<ConfigError>(true, "never {}", "seen"));
  test::expect_error<ConfigError>([] { require<ConfigError>(1 > 2, "1 > {}", 2); }, {"1 > 2"});
}

struct NeverFormatted {};

}  // namespace
}  // namespace annulus

template <>
struct fmt::formatter<annulus::NeverFormatted> {
  constexpr auto parse(format_parse_context& context) { return context.begin(); }
  auto format(const annulus::NeverFormatted&, format_context& context) const {
    ADD_FAILURE() << "formatted the message of a condition that holds";
    return context.out();
  }
};

namespace annulus {
namespace {

TEST(Require, FormatsNothingIfTheConditionHolds) { require<Error>(true, "{}", NeverFormatted()); }

}  // namespace
}  // namespace annulus
