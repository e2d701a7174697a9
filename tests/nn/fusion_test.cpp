#include "core/nn/fusion.h"

#include <gtest/gtest.h>

namespace annulus {
namespace {

/// "0+relu 2" style: the node's position, then what is fused into it.
std::string fused(const char* spec) {
  const std::vector<LayerNode> layers = resolve_layers(parse_model_spec(spec), {8, 8, 1});
  std::string text;
  for (const FusedLayer& layer : fuse_layers(layers)) {
    if (!text.empty()) text += ' ';
    text += layer.node->name;
    if (layer.relu) text += "+relu";
    if (layer.relu_masked_next) text += "+masked_next";
    if (layer.masks_relu) text += "+masks";
  }
  return text;
}

TEST(Fusion, relu_runs_in_the_epilogue_of_the_layer_before_it) {
  EXPECT_EQ(fused("conv2d(4,3) relu flatten linear(8) relu linear(4)"),
            "0+relu 2 3+relu+masked_next 5+masks");
  EXPECT_EQ(fused("relu conv2d(4,3) relu relu"), "0+masked_next 1+relu+masks 3");
  EXPECT_EQ(fused("conv2d(4,3) batch_norm relu"), "0 1 2");
  EXPECT_EQ(fused("residual[ conv2d(1,1) ] relu"), "0 1");
}

TEST(Fusion, the_layer_behind_a_relu_takes_its_gradient) {
  EXPECT_EQ(fused("flatten linear(4) relu linear(4) relu dropout(0.5) linear(4)"),
            "0 1+relu+masked_next 3+relu+masks 5 6");
  EXPECT_EQ(fused("batch_norm relu conv2d(4,3) batch_norm"), "0 1+masked_next 2+masks 3");
  EXPECT_EQ(fused("conv2d(4,3) relu flatten linear(4)"), "0+relu 2 3");
}

TEST(Fusion, max_pooling_takes_the_gradient_of_the_relu_before_it) {
  EXPECT_EQ(fused("conv2d(4,3) relu maxpool(2)"), "0+relu+masked_next 2+masks");
  EXPECT_EQ(fused("batch_norm relu maxpool(2) maxpool(2)"), "0 1+masked_next 2+masks 3");
  EXPECT_EQ(fused("conv2d(4,3) maxpool(2) relu"), "0 1 2");
}

}  // namespace
}  // namespace annulus
