#include "core/base/precision.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

TEST(Precision, has_names) {
  for (const Precision precision : {Precision::f32, Precision::tf32, Precision::bf16})
    EXPECT_EQ(parse_precision(name_of(precision)), precision);
  test::expect_error<ConfigError>([] { static_cast<void>(parse_precision("fp16")); },
                                  {"\"fp16\" is not a precision; known are f32, tf32 and bf16"});
}

TEST(Precision, says_what_activations_are_stored_as) {
  EXPECT_EQ(activation_dtype(Precision::f32), DType::f32);
  EXPECT_EQ(activation_dtype(Precision::tf32), DType::f32);
  EXPECT_EQ(activation_dtype(Precision::bf16), DType::bf16);
}

}  // namespace
}  // namespace annulus
