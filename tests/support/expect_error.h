// Checks that an error is of the right type and says what it should.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace annulus::test {

/// Expects `call` to throw an E whose message contains every one of `parts`.
template <class E, class Call>
void expect_error(const Call& call, std::initializer_list<std::string_view> parts) {
  try {
    call();
  } catch (const E& error) {
    for (const std::string_view part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "the message should contain \"" << part << "\": " << error.what();
    return;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "threw an error of another type: " << error.what();
    return;
  }
  ADD_FAILURE() << "did not throw";
}

}  // namespace annulus::test
