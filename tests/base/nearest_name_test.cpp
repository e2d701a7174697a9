#include "core/base/nearest_name.h"

#include <gtest/gtest.h>

namespace annulus {
namespace {

constexpr std::string_view kNames[] = {"mlp", "lenet", "cnn", "resnet", "fashion-mnist"};

TEST(NearestName, FindsWhatWasMeant) {
  EXPECT_EQ(nearest_name("lenett", kNames), "lenet");
  EXPECT_EQ(nearest_name("reset", kNames), "resnet");
  EXPECT_EQ(nearest_name("mpl", kNames), "mlp");
  EXPECT_EQ(nearest_name("ml", kNames), "mlp");
  EXPECT_EQ(nearest_name("fashion_mnist", kNames), "fashion-mnist");
  EXPECT_EQ(nearest_name("cnn", kNames), "cnn");
}

TEST(NearestName, SuggestsNothingFarFetched) {
  for (const std::string_view text : {"", "transformer", "x", "fashion"})
    EXPECT_EQ(nearest_name(text, kNames), "");
  EXPECT_EQ(nearest_name("cnn", {}), "");
}

TEST(DidYouMean, EndsAMessage) {
  EXPECT_EQ(did_you_mean("cn", kNames), "; did you mean \"cnn\"?");
  EXPECT_EQ(did_you_mean("transformer", kNames), "");
}

}  // namespace
}  // namespace annulus
