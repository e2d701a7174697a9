// Makes the layers of a model, one factory per kind.
#pragma once

#include <cstddef>
#include <memory>

#include "core/nn/fusion.h"
#include "core/nn/layer.h"
#include "core/nn/parameter_arena.h"

namespace annulus {

/// The layer for micro-batches of `batch` samples on the arena's device; node and arena must outlive it.
std::unique_ptr<Layer> make_layer(const FusedLayer& fused, std::size_t batch, const ParameterArena& arena);

std::unique_ptr<Layer> make_conv2d_layer(const FusedLayer& fused, std::size_t batch,
                                         const ParameterArena& arena);
std::unique_ptr<Layer> make_linear_layer(const FusedLayer& fused, std::size_t batch,
                                         const ParameterArena& arena);
std::unique_ptr<Layer> make_relu_layer(const FusedLayer& fused);
std::unique_ptr<Layer> make_max_pool2d_layer(const FusedLayer& fused, std::size_t batch);
std::unique_ptr<Layer> make_global_average_pool_layer();
std::unique_ptr<Layer> make_batch_norm_layer(const FusedLayer& fused, std::size_t batch,
                                             const ParameterArena& arena);
std::unique_ptr<Layer> make_dropout_layer(const FusedLayer& fused);
std::unique_ptr<Layer> make_flatten_layer();
std::unique_ptr<Layer> make_residual_layer(const FusedLayer& fused, std::size_t batch,
                                           const ParameterArena& arena);

}  // namespace annulus
