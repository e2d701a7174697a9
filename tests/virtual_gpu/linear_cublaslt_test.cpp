// Linear layers on the emulated cuBLASLt, where it has all algorithms and where it lacks some.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/linear.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_values.h"
#include "tests/support/real_array.h"
#include "tests/virtual_gpu/virtual_gpu.h"

namespace annulus {
namespace {

using kernels::LinearShape;
using test::RealArray;
using virtual_gpu::RefusedMatmuls;

constexpr Precision kPrecisions[] = {Precision::f32, Precision::tf32, Precision::bf16};

// While one exists, cuBLASLt lacks algorithms.
struct Refusal {
  explicit Refusal(RefusedMatmuls refused) { virtual_gpu::refuse_matmuls(refused); }
  ~Refusal() { virtual_gpu::refuse_matmuls(RefusedMatmuls::none); }
};

LinearShape shape_in(Precision precision) { return {19, 24, 13, true, false, precision}; }

// dweights and, after them, dbias, of small integers.
std::vector<float> gradients(kernels::Linear& linear, const LinearShape& s) {
  const Stream stream(Device::cuda(0));
  const DType dtype = activation_dtype(s.precision);
  const RealArray x(stream, {s.batch, s.in_features}, dtype, test::integers(s.batch * s.in_features, 4, 1));
  const RealArray dy(stream, {s.batch, s.out_features}, dtype,
                     test::integers(s.batch * s.out_features, 4, 2));
  const RealArray dweights(stream, {s.out_features, s.in_features}, DType::f32),
      dbias(stream, {s.out_features}, DType::f32);
  const virtual_gpu::DeviceLedger before = virtual_gpu::ledger(0);
  linear.backward_weights(stream, x, dy, dweights, dbias);
  stream.synchronize();
  EXPECT_EQ(virtual_gpu::ledger(0).total_allocations, before.total_allocations);
  std::vector<float> result = dweights.values();
  const std::vector<float> of_bias = dbias.values();
  result.insert(result.end(), of_bias.begin(), of_bias.end());
  return result;
}

TEST(VirtualGpuLinear, AddsColumnsWhereTheBiasGradientHasNoAlgorithm) {
  for (const Precision precision : kPrecisions) {
    const LinearShape s = shape_in(precision);
    const auto expected = gradients(*kernels::cuda::make_tiled_linear(Device::cuda(0), s), s);
    EXPECT_EQ(gradients(*kernels::cuda::make_cublaslt_linear(Device::cuda(0), s), s), expected)
        << name_of(precision);
    const Refusal refusal(RefusedMatmuls::with_bias_gradient);
    EXPECT_EQ(gradients(*kernels::cuda::make_cublaslt_linear(Device::cuda(0), s), s), expected)
        << name_of(precision);
  }
}

TEST(VirtualGpuLinear, FallsBackToTheTiledProduct) {
  const Refusal refusal(RefusedMatmuls::all);
  for (const Precision precision : kPrecisions) {
    const LinearShape s = shape_in(precision);
    test::expect_error<DeviceError>(
        [&] { kernels::cuda::make_cublaslt_linear(Device::cuda(0), s); },
        {"cuda:0: cuBLASLt has no algorithm for a linear layer of 24 to 13 features at batch 19",
         std::string(name_of(precision))});
    const auto expected = gradients(*kernels::cuda::make_tiled_linear(Device::cuda(0), s), s);
    EXPECT_EQ(gradients(*kernels::make_linear(Device::cuda(0), s), s), expected) << name_of(precision);
  }
}

}  // namespace
}  // namespace annulus
