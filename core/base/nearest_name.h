// Suggests what a mistyped name was meant to be.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace annulus {

/// The name that is closest to `text` in edit distance (letters to insert, delete, replace or swap); empty if
/// none is close enough to be a likely typing error: at most a third of its letters may differ, but always
/// one.
std::string_view nearest_name(std::string_view text, std::span<const std::string_view> names);

/// "; did you mean \"NAME\"?", or nothing if no name is close: ready to end an error message with.
std::string did_you_mean(std::string_view text, std::span<const std::string_view> names);

}  // namespace annulus
