// Shared memory has 32 banks of 4 bytes. An access is split when lanes that go together meet in a bank: 8
// lanes with 16 bytes each, or 32 with 4. The tiles of kernels/device/tensor_gemm.h are laid out so that none
// is.
#include "kernels/device/tensor_gemm.h"

#include <gtest/gtest.h>

#include <set>

#include "kernels/device/matrix_operand.h"

namespace {

using namespace annulus::kernels;
using annulus::BFloat16;

// Lanes that go together, 16 bytes each, by the index of their first element.
template <class Element, class PlaceOf>
void expect_separate_units(const char* what, PlaceOf place_of) {
  for (unsigned first = 0; first < kWarpSize; first += 8) {
    std::set<std::size_t> units;
    for (unsigned lane = first; lane < first + 8; ++lane)
      units.insert(place_of(lane) * sizeof(Element) / 16 % 8);
    EXPECT_EQ(units.size(), 8u) << what << ", lanes from " << first;
  }
}

template <class Element, bool AlongK, unsigned kRows>
void check_tile() {
  using Operand = MatrixOperand<Element, AlongK, 16 / sizeof(Element)>;
  using Tile = TensorTile<Operand, kRows>;
  SCOPED_TRACE(::testing::Message() << sizeof(Element) << " bytes, along k: " << AlongK << ", " << kRows);
  // put(): neighbouring lanes have neighbouring packs.
  constexpr unsigned kLineLength = AlongK ? Tile::kTileK : kRows;
  const auto pack = [](unsigned lane) {
    const unsigned at = lane * Tile::kUnit;
    return Tile::place(at / kLineLength, at % kLineLength);
  };
  expect_separate_units<Element>("put", pack);
  for (unsigned row = 0; row < kRows; row += 16)
    for (unsigned k = 0; k < Tile::kTileK; k += Tile::kStepK) {
      if (AlongK) {
        expect_separate_units<Element>("rows of matrices", [&](unsigned lane) {
          return Tile::place(row + lane % 8, k + lane / 16 * Tile::kUnit);
        });
      } else if (sizeof(Element) == 2) {
        expect_separate_units<Element>("columns of matrices", [&](unsigned lane) {
          return Tile::place(k + lane % 8, row + lane / 16 * 8);
        });
      } else {
        std::set<std::size_t> banks;
        for (unsigned lane = 0; lane < kWarpSize; ++lane)
          banks.insert(Tile::place(k + lane % 4, row + lane / 4) % 32);
        EXPECT_EQ(banks.size(), 32u) << "single words";
      }
    }
}

template <class Element, bool AlongK>
void check_tiles() {
  check_tile<Element, AlongK, 32>();
  check_tile<Element, AlongK, 64>();
  check_tile<Element, AlongK, 128>();
}

TEST(TensorTile, keeps_lanes_in_separate_banks) {
  check_tiles<BFloat16, true>();
  check_tiles<BFloat16, false>();
  check_tiles<float, true>();
  check_tiles<float, false>();
}

// Every element has a place of its own.
TEST(TensorTile, has_a_place_for_every_element) {
  using Tile = TensorTile<MatrixOperand<BFloat16, false, 8>, 64>;
  std::set<unsigned> places;
  for (unsigned k = 0; k < Tile::kTileK; ++k)
    for (unsigned row = 0; row < 64; ++row) places.insert(Tile::place_of(row, k));
  EXPECT_EQ(places.size(), Tile::kElements);
  EXPECT_LT(*places.rbegin(), Tile::kElements);
}

}  // namespace
