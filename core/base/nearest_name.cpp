#include "core/base/nearest_name.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace annulus {
namespace {

/// The fewest letters to insert, delete, replace or swap with their neighbour.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  const std::size_t width = b.size() + 1;
  std::vector<std::size_t> table((a.size() + 1) *
                                 width);  // distance of every prefix of a to every prefix of b
  const auto distance = [&](std::size_t i, std::size_t j) -> std::size_t& { return table[i * width + j]; };
  for (std::size_t i = 0; i <= a.size(); ++i)
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        distance(i, j) = i + j;
        continue;
      }
      std::size_t least = distance(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      least = std::min({least, distance(i - 1, j) + 1, distance(i, j - 1) + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        least = std::min(least, distance(i - 2, j - 2) + 1);
      distance(i, j) = least;
    }
  return table.back();
}

}  // namespace

std::string_view nearest_name(std::string_view text, std::span<const std::string_view> names) {
  std::string_view nearest;
  std::size_t least = std::max<std::size_t>(1, text.size() / 3) + 1;
  for (const std::string_view name : names) {
    const std::size_t distance = edit_distance(text, name);
    if (distance < least) {
      least = distance;
      nearest = name;
    }
  }
  return nearest;
}

std::string did_you_mean(std::string_view text, std::span<const std::string_view> names) {
  const std::string_view nearest = nearest_name(text, names);
  return nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest);
}

}  // namespace annulus
