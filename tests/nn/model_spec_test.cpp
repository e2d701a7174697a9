#include "core/nn/model_spec.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

using test::expect_error;

std::string canonical(std::string_view text) { return to_string(parse_model_spec(text)); }

TEST(ModelSpec, reads_every_layer) {
  const auto layers = parse_model_spec(
      "conv2d(32,3,pad=1) conv2d(4, 5, 2, bias=0)\n maxpool(2) maxpool(3,stride=1) # a comment: relu\n"
      "residual [ batch_norm relu | conv2d(kernel=1, channels=8) ] global_average_pool dropout(0.5)\t"
      "flatten linear(10)");
  ASSERT_EQ(layers.size(), 9u);
  const auto& conv = std::get<Conv2dSpec>(layers[1].options);
  EXPECT_EQ(conv.channels, 4u);
  EXPECT_EQ(conv.kernel, 5u);
  EXPECT_EQ(conv.stride, 2u);
  EXPECT_EQ(conv.padding, 0u);
  EXPECT_FALSE(conv.bias);
  EXPECT_EQ(std::get<MaxPoolSpec>(layers[2].options).stride, 2u);
  EXPECT_EQ(std::get<MaxPoolSpec>(layers[3].options).stride, 1u);
  const auto& residual = std::get<ResidualSpec>(layers[4].options);
  EXPECT_EQ(residual.main.size(), 2u);
  EXPECT_EQ(std::get<Conv2dSpec>(residual.shortcut.at(0).options).channels, 8u);
  EXPECT_EQ(std::get<DropoutSpec>(layers[6].options).probability, 0.5f);
  EXPECT_EQ(std::get<LinearSpec>(layers[8].options).features, 10u);
}

TEST(ModelSpec, canonical_text_reads_back_as_itself) {
  EXPECT_EQ(canonical(" conv2d( channels = 32 ,kernel=3, stride=1,pad=1,bias=1 )relu maxpool(2,2)"),
            "conv2d(32,3,pad=1) relu maxpool(2)");
  EXPECT_EQ(canonical("residual[relu|conv2d(8,1,2,0,0)residual[flatten]]"),
            "residual[ relu | conv2d(8,1,stride=2,bias=0) residual[ flatten ] ]");
  for (const char* name : {"mlp", "lenet", "cnn", "resnet"}) {
    const std::string spec = expand_model(name, 10);
    EXPECT_EQ(canonical(spec), spec);
    EXPECT_EQ(expand_model(spec, 10), spec);
  }
  EXPECT_EQ(canonical("dropout(0.1)"), "dropout(0.1)");
}

TEST(ModelSpec, names_stand_for_specs_with_the_classes_of_the_data) {
  EXPECT_EQ(expand_model("mlp", 10), "flatten linear(512) relu linear(256) relu linear(10)");
  EXPECT_EQ(expand_model("cnn", 7),
            "conv2d(32,3,pad=1) relu maxpool(2) conv2d(64,3,pad=1) relu maxpool(2) flatten linear(128) relu "
            "linear(7)");
  expect_error<ConfigError>([] { expand_model("ccn", 10); },
                            {"unknown model \"ccn\"", "did you mean \"cnn\"?", "mlp, lenet, cnn, resnet"});
  expect_error<ConfigError>([] { expand_model("transformer", 10); },
                            {"unknown model \"transformer\"", "mlp"});
}

TEST(ModelSpec, errors_point_at_the_position_and_suggest) {
  struct Fault {
    const char* text;
    std::initializer_list<std::string_view> message;
  };
  const Fault faults[] = {
      {"", {"character 1 (its end)", "at least one layer"}},
      {"conv2d(8,3) relo", {"character 13 (\"relo\")", "unknown layer \"relo\"", "did you mean \"relu\"?"}},
      {"conv2d(8)", {"character 1", "conv2d needs its argument \"kernel\""}},
      {"linear", {"linear needs its argument \"features\""}},
      {"conv2d(8,3,padd=1)", {"character 12 (\"padd=1)\")", "no argument \"padd\"", "did you mean \"pad\"?"}},
      {"conv2d(8,3,1,0,1,9)", {"character 18", "at most 5 arguments"}},
      {"relu(1)", {"character 6", "at most 0 arguments"}},
      {"conv2d(8,3,pad=1,pad=1)", {"character 18", "\"pad\" is given twice"}},
      {"conv2d(8,3,channels=1)", {"character 12", "no argument \"channels\""}},
      {"conv2d(8,pad=1,3)", {"character 16", "by position come before"}},
      {"conv2d(0,3)", {"character 8", "channels of conv2d must be a whole number from 1"}},
      {"conv2d(2.5,3)", {"whole number"}},
      {"linear(1e300)", {"whole number"}},
      {"linear(nan)", {"character 11", "expected \"=\""}},
      {"linear(-)", {"character 8", "expected a number"}},
      {"conv2d(8,3,bias=2)", {"bias of conv2d must be 0 or 1"}},
      {"dropout(1)", {"probability of dropout must be at least 0 and less than 1"}},
      {"linear(10", {"character 10 (its end)", "expected \")\""}},
      {"linear(10))", {"character 11", "expected a layer"}},
      {"residual relu", {"character 10", "expected \"[\""}},
      {"residual[ relu", {"character 15 (its end)", "expected \"]\""}},
      {"residual[ ]", {"character 11", "main branch"}},
      {"residual[ relu | ]", {"character 18", "leave \"|\" out"}},
      {"relu ; relu", {"character 6", "expected a layer"}},
  };
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault.text);
    expect_error<ConfigError>([&] { parse_model_spec(fault.text); }, fault.message);
  }
}

}  // namespace
}  // namespace annulus
