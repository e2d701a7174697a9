#include "core/nn/layers/make_layer.h"

namespace annulus {
namespace {

struct Maker {
  const FusedLayer& fused;
  std::size_t batch;
  const ParameterArena& arena;

  auto operator()(const Conv2dSpec&) const { return make_conv2d_layer(fused, batch, arena); }
  auto operator()(const LinearSpec&) const { return make_linear_layer(fused, batch, arena); }
  auto operator()(const ReluSpec&) const { return make_relu_layer(fused); }
  auto operator()(const MaxPoolSpec&) const { return make_max_pool2d_layer(fused, batch); }
  auto operator()(const GlobalAveragePoolSpec&) const { return make_global_average_pool_layer(); }
  auto operator()(const BatchNormSpec&) const { return make_batch_norm_layer(fused, batch, arena); }
  auto operator()(const DropoutSpec&) const { return make_dropout_layer(fused); }
  auto operator()(const FlattenSpec&) const { return make_flatten_layer(); }
  auto operator()(const ResidualSpec&) const { return make_residual_layer(fused, batch, arena); }
};

}  // namespace

std::unique_ptr<Layer> make_layer(const FusedLayer& fused, std::size_t batch, const ParameterArena& arena) {
  return std::visit(Maker{fused, batch, arena}, fused.node->spec.options);
}

}  // namespace annulus
