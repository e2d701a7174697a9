#include "nccl/ordered_sum.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "core/base/error.h"

namespace annulus {
namespace {

// Elements summed at a time: the partial sums of a whole tree stay in the first-level cache, and all lines of
// a block are asked for before the first one is written, which hides the latency of lines of other cores.
constexpr std::size_t kBlock = 256;

// How an element type is read, added and written. Integers are added as unsigned ones, which may wrap.
template <class T>
struct Plain {
  using Element = T;
  using Sum = T;
  static Sum load(Element value) { return value; }
  static Element store(Sum value) { return value; }
};

struct BFloat16 {
  using Element = std::uint16_t;
  using Sum = float;
  static Sum load(Element value) { return std::bit_cast<float>(std::uint32_t{value} << 16); }
  static Element store(Sum value) {  // round to nearest, ties to even; NaN stays NaN
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<Element>((bits >> 16) | 0x40u);
    return static_cast<Element>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
  }
};

struct Float16 {
  using Element = std::uint16_t;
  using Sum = float;
  static Sum load(Element value) {
    const std::uint32_t sign = (value & 0x8000u) << 16, magnitude = value & 0x7FFFu;
    // Exponents are moved from bias 15 to bias 127 by an exact product, which also makes subnormals normal.
    const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
    const std::uint32_t special = magnitude >= 0x7C00u ? 0x7F800000u : 0u;  // infinity or NaN
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
  }
  static Element store(Sum value) {  // round to nearest, ties to even; NaN stays NaN
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<Element>((bits >> 16) & 0x8000u);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return static_cast<Element>(sign | 0x7E00u);
    if (magnitude >= 0x477FF000u) return static_cast<Element>(sign | 0x7C00u);  // rounds past 65504
    if (magnitude < 0x38800000u) {  // below 2^-14: subnormal, the addition rounds at 2^-24
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
      return static_cast<Element>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000u));
    }
    const std::uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
    return static_cast<Element>(sign | ((rounded - 0x38000000u) >> 13));
  }
};

// out[i] = the tree's sum of elements begin + i of sources [0, ranks), i in [0, count), count <= kBlock.
template <class Type>
void sum_block(const std::byte* const* sources, int ranks, std::size_t begin, std::size_t count,
               typename Type::Sum* __restrict out) {
  const auto source = [&](int rank) {
    return reinterpret_cast<const typename Type::Element*>(sources[rank]) + begin;
  };
  if (ranks == 1) {
    const auto* __restrict only = source(0);
    for (std::size_t i = 0; i < count; ++i) out[i] = Type::load(only[i]);
  } else if (ranks == 2) {
    const auto* __restrict a = source(0), * __restrict b = source(1);
    for (std::size_t i = 0; i < count; ++i) {
      out[i] = static_cast<typename Type::Sum>(Type::load(a[i]) + Type::load(b[i]));
    }
  } else {
    const int left = static_cast<int>(std::bit_ceil(static_cast<unsigned>(ranks)) / 2);
    typename Type::Sum right[kBlock];
    sum_block<Type>(sources, left, begin, count, out);
    sum_block<Type>(sources + left, ranks - left, begin, count, right);
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<typename Type::Sum>(out[i] + right[i]);
  }
}

template <class Type>
void sum_all(const std::byte* const* sources, int ranks, std::byte* const* destinations, int copies,
             std::size_t count) {
  using Element = typename Type::Element;
  typename Type::Sum sum[kBlock];
  Element rounded[kBlock];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t size = std::min(kBlock, count - begin);
    sum_block<Type>(sources, ranks, begin, size, sum);
    for (std::size_t i = 0; i < size; ++i) rounded[i] = Type::store(sum[i]);
    for (int copy = 0; copy < copies; ++copy) {
      std::memcpy(destinations[copy] + begin * sizeof(Element), rounded, size * sizeof(Element));
    }
  }
}

}  // namespace

void ordered_sum(const std::byte* const* sources, int ranks, std::byte* const* destinations, int copies,
                 std::size_t count, DType dtype) {
  switch (dtype) {
    case DType::f32:
      return sum_all<Plain<float>>(sources, ranks, destinations, copies, count);
    case DType::f64:
      return sum_all<Plain<double>>(sources, ranks, destinations, copies, count);
    case DType::bf16:
      return sum_all<BFloat16>(sources, ranks, destinations, copies, count);
    case DType::f16:
      return sum_all<Float16>(sources, ranks, destinations, copies, count);
    case DType::i32:
      return sum_all<Plain<std::uint32_t>>(sources, ranks, destinations, copies, count);
    case DType::i64:
      return sum_all<Plain<std::uint64_t>>(sources, ranks, destinations, copies, count);
    case DType::u8:
      return sum_all<Plain<std::uint8_t>>(sources, ranks, destinations, copies, count);
  }
  fail<ShapeError>("cannot sum elements of dtype {}", static_cast<int>(dtype));
}

}  // namespace annulus
