// Runs a planned matrix product in any precision.
#pragma once

#include "kernels/device/tensor_gemm.h"
#include "kernels/device/tiled_gemm.h"

namespace annulus::kernels {

template <Precision precision, unsigned kTileN, class A, class B, class Output>
void launch_gemm(StreamView stream, const GemmPlan& plan, const A& a, const B& b, const Output& output) {
  const std::size_t tiles_n = blocks_for(plan.shape.n, kTileN);
  const Grid grid{blocks_for(plan.shape.m, kTileM) * tiles_n, 1, plan.splits};
  if constexpr (precision == Precision::f32)
    launch(stream, grid, kGemmThreads, tiled_gemm_bytes<kTileN, A, B>(),
           tiled_gemm_kernel<kTileN, A, B, Output>, a, b, output, plan.shape.k, plan.k_per_split, tiles_n);
  else
    launch(stream, grid, kGemmThreads, tensor_gemm_bytes<kTileN, A, B>(),
           tensor_gemm_kernel<kTileN, A, B, Output>, a, b, output, plan.shape.k, plan.k_per_split, tiles_n);
}

/// Runs the planned product. `workspace` holds plan.workspace_elements() f32.
template <Precision precision, class A, class B, class Output>
void gemm(StreamView stream, const GemmPlan& plan, const A& a, const B& b, const Output& output,
          float* workspace) {
  const SplitOutput<Output> to{output, plan.splits == 1 ? nullptr : workspace, plan.shape};
  if constexpr (precision != Precision::f32 && A::kWidth == 1) {
    launch_gemm<precision, 64>(stream, plan, a, b, to);  // single elements come no faster in other tiles
  } else {
    if (plan.tile_n == 32)
      launch_gemm<precision, 32>(stream, plan, a, b, to);
    else if (plan.tile_n == 64)
      launch_gemm<precision, 64>(stream, plan, a, b, to);
    else if constexpr (precision != Precision::f32)
      launch_gemm<precision, 128>(stream, plan, a, b, to);
  }
  if (plan.splits > 1)
    launch(stream, {grid_stride_blocks(plan.shape.m * plan.shape.n, kGemmThreads)}, kGemmThreads, 0,
           add_parts_kernel<Output>, plan.shape, plan.splits, static_cast<const float*>(workspace), output);
}

}  // namespace annulus::kernels
