#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <vector>

#include "io/checkpoint.h"
#include "tools/checkpoint_commands.h"

namespace annulus {
namespace {

constexpr std::size_t kPieceBytes = 1u << 20;  // a multiple of every element size

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

double half_to_double(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1F, mantissa = bits & 0x3FF;
  double magnitude = std::ldexp(mantissa, -24);  // zero and subnormals
  if (exponent == 0x1F)
    magnitude =
        mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  else if (exponent > 0)
    magnitude = std::ldexp(mantissa + 1024, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

double bf16_to_double(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

double element(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::f32:
      return load<float>(at);
    case DType::f64:
      return load<double>(at);
    case DType::bf16:
      return bf16_to_double(load<std::uint16_t>(at));
    case DType::f16:
      return half_to_double(load<std::uint16_t>(at));
    case DType::i32:
      return load<std::int32_t>(at);
    case DType::i64:
      return static_cast<double>(load<std::int64_t>(at));
    case DType::u8:
      return load<std::uint8_t>(at);
  }
  return 0;
}

struct Difference {
  std::uint64_t elements = 0;  // whose bits differ
  double absolute = 0;         // the largest |a - b|
  double relative = 0;         // the largest |a - b| / max(|a|, |b|)

  void add(double a, double b) {
    ++elements;
    if (a == b) return;  // 0 and -0
    double distance = std::abs(a - b);
    double ratio = distance / std::max(std::abs(a), std::abs(b));
    if (std::isnan(distance)) distance = std::numeric_limits<double>::infinity();
    if (std::isnan(ratio)) ratio = std::numeric_limits<double>::infinity();
    absolute = std::max(absolute, distance);
    relative = std::max(relative, ratio);
  }
};

void compare_piece(DType dtype, std::span<const std::byte> a, std::span<const std::byte> b,
                   Difference& difference) {
  const std::size_t size = size_of(dtype);
  for (std::size_t at = 0; at < a.size(); at += size)
    if (std::memcmp(&a[at], &b[at], size) != 0)
      difference.add(element(dtype, &a[at]), element(dtype, &b[at]));
}

Difference compare(const CheckpointReader& first, const TensorRecord& a, const CheckpointReader& second,
                   const TensorRecord& b) {
  Difference difference;
  std::vector<std::byte> bytes_a(kPieceBytes), bytes_b(kPieceBytes);
  for (std::uint64_t at = 0; at < a.bytes(); at += kPieceBytes) {
    const std::size_t size = std::min<std::uint64_t>(kPieceBytes, a.bytes() - at);
    const std::span<std::byte> piece_a = std::span(bytes_a).first(size),
                               piece_b = std::span(bytes_b).first(size);
    first.read_bytes(a, at, piece_a);
    second.read_bytes(b, at, piece_b);
    if (std::memcmp(piece_a.data(), piece_b.data(), size) != 0)
      compare_piece(a.dtype, piece_a, piece_b, difference);
  }
  return difference;
}

std::string kind_of(const TensorRecord& record) {
  return fmt::format("{} {} [{}]{}", name_of(record.role), name_of(record.dtype),
                     fmt::join(record.shape, ", "),
                     record.of.empty() ? "" : fmt::format(" of {}", record.of));
}

// What to print about one tensor, and whether it is equal.
std::pair<std::string, bool> describe_difference(const CheckpointReader& first, const TensorRecord& a,
                                                 const CheckpointReader& second, const TensorRecord& b) {
  if (kind_of(a) != kind_of(b)) return {fmt::format("{} in A, {} in B", kind_of(a), kind_of(b)), false};
  const Difference difference = compare(first, a, second, b);
  if (difference.elements == 0) return {"equal", true};
  return {fmt::format("{} of {} elements differ, by at most {:.6g} absolute, {:.6g} relative",
                      difference.elements, a.elements(), difference.absolute, difference.relative),
          false};
}

std::string text_of(const AttributeValue* value) {
  if (value == nullptr) return "nothing";
  return std::visit([](const auto& stored) { return nlohmann::json(stored).dump(); }, *value);
}

bool diff_attributes(const Attributes& first, const Attributes& second) {
  bool equal = true;
  std::set<std::string> names;
  for (const Attributes* attributes : {&first, &second})
    for (const auto& [name, value] : *attributes) names.insert(name);
  const auto find = [](const Attributes& attributes, const std::string& name) {
    const auto found = attributes.find(name);
    return found == attributes.end() ? nullptr : &found->second;
  };
  for (const std::string& name : names) {
    const AttributeValue* a = find(first, name);
    const AttributeValue* b = find(second, name);
    if (a != nullptr && b != nullptr && *a == *b) continue;
    fmt::print("training {}: {} in A, {} in B\n", name, text_of(a), text_of(b));
    equal = false;
  }
  return equal;
}

}  // namespace

bool diff_checkpoints(const std::filesystem::path& first_path, const std::filesystem::path& second_path) {
  const CheckpointReader first(first_path), second(second_path);
  bool equal = diff_attributes(first.attributes(), second.attributes());
  for (const TensorRecord& a : first.tensors()) {
    const TensorRecord* b = second.find(a.name);
    const auto [text, same] =
        b == nullptr ? std::pair{std::string("only in A"), false} : describe_difference(first, a, second, *b);
    fmt::print("{}: {}\n", a.name, text);
    equal = equal && same;
  }
  for (const TensorRecord& b : second.tensors()) {
    if (first.find(b.name) != nullptr) continue;
    fmt::print("{}: only in B\n", b.name);
    equal = false;
  }
  return equal;
}

}  // namespace annulus
