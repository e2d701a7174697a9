#include "io/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace annulus {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78u;  // 0x1EDC6F41 with its bits reversed

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// Slicing by eight: tables[k][b] is what byte b adds to the checksum when k more bytes follow it.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? kPolynomial : 0u);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < tables.size(); ++k)
    for (std::size_t byte = 0; byte < 256; ++byte)
      tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xFFu];
  return tables;
}

constexpr Tables kTables = make_tables();

std::uint64_t load_word(const std::byte* bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

#if defined(__x86_64__)

// The instruction takes three cycles but starts every cycle, so three lanes run side by side.
constexpr std::size_t kLaneBytes = 1024;

using ShiftTables = std::array<std::array<std::uint32_t, 256>, 4>;

// tables[k][b]: byte k of a register that holds b, after kLaneBytes zero bytes. The register is linear in its
// bits, so the images of the 32 single bits give all others.
constexpr ShiftTables make_shift_tables() {
  std::array<std::uint32_t, 32> image{};
  for (std::size_t bit = 0; bit < image.size(); ++bit) {
    std::uint32_t state = 1u << bit;
    for (std::size_t n = 0; n < kLaneBytes; ++n) state = (state >> 8) ^ kTables[0][state & 0xFFu];
    image[bit] = state;
  }
  ShiftTables tables{};
  for (std::size_t k = 0; k < tables.size(); ++k)
    for (std::size_t byte = 0; byte < 256; ++byte)
      for (std::size_t bit = 0; bit < 8; ++bit)
        if ((byte >> bit & 1u) != 0) tables[k][byte] ^= image[8 * k + bit];
  return tables;
}

constexpr ShiftTables kShift = make_shift_tables();

std::uint32_t after_lane(std::uint64_t state) {
  return kShift[0][state & 0xFFu] ^ kShift[1][state >> 8 & 0xFFu] ^ kShift[2][state >> 16 & 0xFFu] ^
         kShift[3][state >> 24 & 0xFFu];
}

__attribute__((target("sse4.2"))) std::uint32_t crc32c_instruction(std::span<const std::byte> bytes,
                                                                   std::uint32_t crc) {
  std::uint64_t state = ~crc;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 3 * kLaneBytes; at += 3 * kLaneBytes, left -= 3 * kLaneBytes) {
    std::uint64_t second = 0, third = 0;
    for (std::size_t i = 0; i < kLaneBytes; i += 8) {
      state = _mm_crc32_u64(state, load_word(at + i));
      second = _mm_crc32_u64(second, load_word(at + kLaneBytes + i));
      third = _mm_crc32_u64(third, load_word(at + 2 * kLaneBytes + i));
    }
    state = after_lane(after_lane(state) ^ second) ^ third;
  }
  for (; left >= 8; at += 8, left -= 8) state = _mm_crc32_u64(state, load_word(at));
  for (; left > 0; ++at, --left)
    state = _mm_crc32_u8(static_cast<std::uint32_t>(state), static_cast<std::uint8_t>(*at));
  return ~static_cast<std::uint32_t>(state);
}

#endif

}  // namespace

std::uint32_t crc32c_portable(std::span<const std::byte> bytes, std::uint32_t crc) {
  std::uint32_t state = ~crc;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    const std::uint64_t word = load_word(at) ^ state;
    state = 0;
    for (std::size_t k = 0; k < 8; ++k) state ^= kTables[7 - k][(word >> (8 * k)) & 0xFFu];
  }
  for (; left > 0; ++at, --left)
    state = (state >> 8) ^ kTables[0][(state ^ static_cast<std::uint32_t>(*at)) & 0xFFu];
  return ~state;
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return crc32c_instruction(bytes, crc);
#endif
  return crc32c_portable(bytes, crc);
}

}  // namespace annulus
