#include "core/base/dtype.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

TEST(DType, HasNamesAndSizes) {
  struct Expected {
    DType dtype;
    const char* name;
    std::size_t size;
  };
  for (const auto& [dtype, name, size] :
       {Expected{DType::f32, "f32", 4}, Expected{DType::f64, "f64", 8}, Expected{DType::bf16, "bf16", 2},
        Expected{DType::f16, "f16", 2}, Expected{DType::i32, "i32", 4}, Expected{DType::i64, "i64", 8},
        Expected{DType::u8, "u8", 1}}) {
    EXPECT_EQ(name_of(dtype), name);
    EXPECT_EQ(size_of(dtype), size) << name;
    EXPECT_EQ(parse_dtype(name), dtype) << name;
  }
}

TEST(DType, RefusesUnknownNames) {
  for (const char* text : {"", "float", "F32", "f32 "})
    test::expect_error<ConfigError>([&] { (void)parse_dtype(text); }, {text, "f32", "u8"});
  EXPECT_THROW((void)size_of(static_cast<DType>(99)), ShapeError);
}

TEST(DType, KnowsItsCppTypes) {
  static_assert(DTypeOf<float>::value == DType::f32 && DTypeOf<double>::value == DType::f64);
  static_assert(DTypeOf<std::int32_t>::value == DType::i32 && DTypeOf<std::int64_t>::value == DType::i64);
  static_assert(DTypeOf<std::uint8_t>::value == DType::u8);
}

}  // namespace
}  // namespace annulus
