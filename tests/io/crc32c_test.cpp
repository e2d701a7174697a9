#include "io/crc32c.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string_view>
#include <vector>

namespace annulus {
namespace {

std::vector<std::byte> bytes(std::initializer_list<int> values) {
  std::vector<std::byte> result;
  for (const int value : values) result.push_back(static_cast<std::byte>(value));
  return result;
}

std::vector<std::byte> sequence(std::size_t count, int first, int step) {
  std::vector<std::byte> result;
  for (std::size_t i = 0; i < count; ++i)
    result.push_back(static_cast<std::byte>(first + step * static_cast<int>(i)));
  return result;
}

void expect_both(std::span<const std::byte> data, std::uint32_t expected) {
  EXPECT_EQ(crc32c(data), expected);
  EXPECT_EQ(crc32c_portable(data), expected);
}

// RFC 3720, appendix B.4, and the check value of the catalogue of CRC algorithms.
TEST(Crc32c, MatchesPublishedVectors) {
  expect_both({}, 0);
  expect_both(std::as_bytes(std::span(std::string_view("123456789"))), 0xE3069283u);
  expect_both(std::vector<std::byte>(32, std::byte{0}), 0x8A9136AAu);
  expect_both(std::vector<std::byte>(32, std::byte{0xFF}), 0x62A8AB43u);
  expect_both(sequence(32, 0, 1), 0x46DD794Eu);
  expect_both(sequence(32, 31, -1), 0x113FDB5Cu);
  expect_both(
      bytes({0x01, 0xc0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
             0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x18,
             0x28, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00}),
      0xD9963A56u);
}

// By the definition, so it is the reference for the fast ones.
std::uint32_t bitwise(std::span<const std::byte> data) {
  std::uint32_t state = ~0u;
  for (const std::byte byte : data) {
    state ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1u) != 0 ? 0x82F63B78u : 0u);
  }
  return ~state;
}

TEST(Crc32c, IsTheSameByInstructionByTableAndBitByBit) {
  const std::vector<std::byte> data = sequence(10000, 7, 31);
  for (const std::size_t size : {0, 1, 7, 8, 9, 63, 1023, 1024, 3071, 3072, 3073, 3080, 6144, 6150, 9000})
    for (const std::size_t start : {0, 1, 3, 8}) {
      const std::span<const std::byte> part = std::span(data).subspan(start, size);
      const std::uint32_t expected = bitwise(part);
      EXPECT_EQ(crc32c(part), expected) << size << " bytes from " << start;
      EXPECT_EQ(crc32c_portable(part), expected) << size << " bytes from " << start;
    }
}

TEST(Crc32c, ContinuesWhereItStopped) {
  const std::vector<std::byte> data = sequence(8000, 3, 17);
  const std::uint32_t expected = crc32c(data);
  for (const std::size_t cut : {0, 1, 5, 3072, 4000, 7999, 8000}) {
    const std::uint32_t head = crc32c(std::span(data).first(cut));
    EXPECT_EQ(crc32c(std::span(data).subspan(cut), head), expected) << cut;
  }
}

}  // namespace
}  // namespace annulus
