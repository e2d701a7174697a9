#include "core/base/tensor.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/expect_error.h"

namespace annulus {
namespace {

constexpr std::size_t kHalfOfAll = std::numeric_limits<std::size_t>::max() / 2 + 1;

TEST(Shape, CountsAndPrints) {
  const Shape shape{64, 28, 28, 1};
  EXPECT_EQ(shape.rank(), 4u);
  EXPECT_EQ(shape[1], 28u);
  EXPECT_EQ(shape.elements(), 50176u);
  EXPECT_EQ(shape.to_string(), "[64, 28, 28, 1]");
  const std::size_t extents[] = {64, 28, 28, 1};
  EXPECT_EQ(Shape(extents, 4), shape);
  EXPECT_NE(Shape(extents, 3), shape);
}

TEST(Shape, OfRankZeroIsAScalar) {
  EXPECT_EQ(Shape().rank(), 0u);
  EXPECT_EQ(Shape().elements(), 1u);
  EXPECT_EQ(Shape().to_string(), "[]");
}

TEST(Shape, MayHoldNothing) {
  EXPECT_EQ((Shape{0, 3}).elements(), 0u);
  EXPECT_EQ((Shape{0, kHalfOfAll, 4}).elements(), 0u);
}

TEST(Shape, RefusesWhatItCannotCount) {
  EXPECT_EQ((Shape{kHalfOfAll, 1}).elements(), kHalfOfAll);
  test::expect_error<ShapeError>([] { (void)Shape{kHalfOfAll, 2}; }, {"more elements", "std::size_t"});
  test::expect_error<ShapeError>([] { (void)Shape{1u << 31, 1u << 31, 1u << 31}; }, {"more elements"});
  test::expect_error<ShapeError>([] { (void)Shape{1, 2, 3, 4, 5}; }, {"at most 4", "5"});
}

TEST(Tensor, IsAViewOfOthersMemory) {
  float data[6] = {0, 1, 2, 3, 4, 5};
  const Tensor tensor(data, {2, 3});
  const Tensor copy = tensor;
  EXPECT_EQ(copy.data(), data);
  EXPECT_EQ(copy.elements(), 6u);
  EXPECT_EQ(copy.bytes(), 24u);
  EXPECT_EQ(copy.dtype(), DType::f32);
  EXPECT_TRUE(copy.device().is_cpu());
  copy.as<float>()[5] = 7;
  EXPECT_EQ(data[5], 7);
}

TEST(Tensor, ByDefaultStandsForAnAbsentOne) {
  EXPECT_TRUE(Tensor().empty());
  float data = 0;
  EXPECT_FALSE(Tensor(&data, {}).empty());
}

TEST(Tensor, RefusesAccessAsAnotherType) {
  float data[2] = {};
  test::expect_error<ShapeError>([&] { (void)Tensor(data, {2}).as<double>(); }, {"[2]", "f32", "f64"});
}

TEST(Tensor, ReshapesWithoutMovingElements) {
  std::uint8_t data[6] = {};
  const Tensor tensor(data, {2, 3}, DType::u8, Device::cuda(1));
  const Tensor reshaped = tensor.reshaped({3, 2, 1});
  EXPECT_EQ(reshaped.data(), data);
  EXPECT_EQ(reshaped.shape(), (Shape{3, 2, 1}));
  EXPECT_EQ(reshaped.dtype(), DType::u8);
  EXPECT_EQ(reshaped.device(), Device::cuda(1));
  test::expect_error<ShapeError>([&] { (void)tensor.reshaped({7}); }, {"[2, 3]", "[7]", "6", "7"});
}

}  // namespace
}  // namespace annulus
