// A kernel gives the same bits whatever the order of its blocks and threads: every family, in every dtype,
// under ten seeds of the scheduler.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "kernels/activation.h"
#include "kernels/augment.h"
#include "kernels/batch_norm.h"
#include "kernels/conv2d.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "kernels/optimizer.h"
#include "kernels/pool2d.h"
#include "kernels/reduce.h"
#include "kernels/softmax_cross_entropy.h"
#include "tests/support/device_array.h"
#include "tests/support/precisions.h"
#include "tests/support/random_values.h"
#include "tests/support/real_array.h"
#include "tests/virtual_gpu/virtual_gpu.h"

namespace annulus {
namespace {

using test::DeviceArray;
using test::DeviceStepValues;
using test::RealArray;
using test::uniform;

using Outputs = std::vector<std::vector<float>>;

class KernelSchedules : public ::testing::Test {
 protected:
  // Runs a computation under the seeds 1 to 10 and expects what it gave under seed 1.
  static void expect_same_bits(const std::function<Outputs(const Stream&)>& compute) {
    Outputs first;
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      virtual_gpu::set_seed(seed);
      const Stream stream(Device::cuda(0));
      const Outputs outputs = compute(stream);
      if (seed == 1) first = outputs;
      EXPECT_EQ(outputs, first) << "seed " << seed;
    }
  }

  static constexpr DType kDTypes[] = {DType::f32, DType::bf16};
  static constexpr std::size_t kCount = 1031;
};

TEST_F(KernelSchedules, Elementwise) {
  for (const DType dtype : kDTypes)
    expect_same_bits([&](const Stream& stream) {
      const RealArray a(stream, {kCount}, dtype, uniform(kCount, -1, 1, 1), 1);
      const RealArray b(stream, {kCount}, dtype, uniform(kCount, -1, 1, 2), 1);
      const RealArray sum(stream, {kCount}, dtype, 1), scaled(stream, {kCount}, dtype),
          filled(stream, {kCount}, dtype);
      const RealArray cast(stream, {kCount}, DType::f16);
      kernels::add(stream, a, b, sum);
      kernels::scale(stream, 0.3f, a, scaled);
      kernels::fill(stream, 0.7f, filled);
      kernels::cast(stream, a, cast);
      const RealArray matrix(stream, {2, 37, 41}, dtype, uniform(2 * 37 * 41, -1, 1, 3));
      const RealArray transposed(stream, {2, 41, 37}, dtype);
      kernels::transpose_inner(stream, matrix, transposed);
      return Outputs{sum.values(), scaled.values(), filled.values(), cast.values(), transposed.values()};
    });
}

TEST_F(KernelSchedules, ActivationAndDropout) {
  for (const DType dtype : kDTypes)
    expect_same_bits([&](const Stream& stream) {
      const RealArray x(stream, {kCount}, dtype, uniform(kCount, -1, 1, 1));
      const RealArray y(stream, {kCount}, dtype), dx(stream, {kCount}, dtype),
          dropped(stream, {kCount}, dtype);
      const DeviceStepValues values(stream, {.step = 3});
      kernels::relu_forward(stream, x, y);
      kernels::relu_backward(stream, x, y, dx);
      kernels::dropout(stream, {.seed = 1, .values = values.get()}, 0.4f, x, dropped);
      return Outputs{y.values(), dx.values(), dropped.values()};
    });
}

TEST_F(KernelSchedules, Reduce) {
  for (const DType dtype : kDTypes)
    expect_same_bits([&](const Stream& stream) {
      constexpr std::size_t kMany = 40000;  // several blocks
      const RealArray x(stream, {kMany}, dtype, uniform(kMany, -1, 1, 1), 1);
      const Buffer workspace(stream.device(), kernels::reduce_workspace_bytes(stream.device(), kMany));
      const DeviceArray<float> sum(stream, {1}), norm(stream, {1}), largest(stream, {1});
      kernels::sum(stream, x, workspace.data(), sum);
      kernels::squared_norm(stream, x, workspace.data(), norm);
      kernels::absmax(stream, x, workspace.data(), largest);
      return Outputs{sum.values(), norm.values(), largest.values()};
    });
}

TEST_F(KernelSchedules, Pool2d) {
  for (const DType dtype : kDTypes)
    expect_same_bits([&](const Stream& stream) {
      const kernels::Pool2dShape s{2, 7, 9, 16, 3, 2};  // windows overlap
      const RealArray x(stream, s.input(), dtype, uniform(s.input().elements(), -1, 1, 1));
      const RealArray dy(stream, s.output(), dtype, uniform(s.output().elements(), -1, 1, 2));
      const RealArray y(stream, s.output(), dtype), dx(stream, s.input(), dtype),
          mean(stream, {2, 16}, dtype);
      const DeviceArray<std::uint8_t> argmax(stream, s.output());
      kernels::max_pool2d_forward(stream, s, x, y, argmax);
      kernels::max_pool2d_backward(stream, s, dy, argmax, {}, dx);
      kernels::global_average_pool_forward(stream, x, mean);
      return Outputs{y.values(), dx.values(), mean.values()};
    });
}

TEST_F(KernelSchedules, BatchNorm) {
  for (const DType dtype : kDTypes)
    expect_same_bits([&](const Stream& stream) {
      const Shape all{1100, 19}, each{19};  // three chunks of rows
      const RealArray x(stream, all, dtype, uniform(all.elements(), -1, 1, 1));
      const RealArray dy(stream, all, dtype, uniform(all.elements(), -1, 1, 2));
      const RealArray y(stream, all, dtype), dx(stream, all, dtype);
      const DeviceArray<float> scale(stream, each, uniform(19, 1, 2, 3)),
          shift(stream, each, uniform(19, 1, 2, 4));
      const DeviceArray<float> mean(stream, each), inverse_std(stream, each), variance(stream, each);
      const DeviceArray<float> dscale(stream, each), dshift(stream, each);
      const Buffer workspace(stream.device(),
                             kernels::batch_norm_workspace_bytes(stream.device(), all[0], all[1]));
      kernels::batch_norm_forward(stream, x, scale, shift, 1e-5f, workspace.data(), y, mean, inverse_std,
                                  variance);
      kernels::batch_norm_backward(stream, dy, x, scale, mean, inverse_std, workspace.data(), dx, dscale,
                                   dshift);
      return Outputs{y.values(),  mean.values(),   variance.values(),
                     dx.values(), dscale.values(), dshift.values()};
    });
}

TEST_F(KernelSchedules, SoftmaxCrossEntropy) {
  for (const DType dtype : kDTypes)
    expect_same_bits([&](const Stream& stream) {
      const std::size_t rows = 37, classes = 41;
      std::vector<std::int32_t> label(rows);
      for (std::size_t row = 0; row < rows; ++row) label[row] = static_cast<std::int32_t>(7 * row % classes);
      const RealArray logits(stream, {rows, classes}, dtype, uniform(rows * classes, -4, 4, 1));
      const RealArray dlogits(stream, {rows, classes}, dtype);
      const DeviceArray<std::int32_t> labels(stream, {rows}, label);
      const DeviceArray<float> statistics(stream, {3});
      const Buffer workspace(stream.device(),
                             kernels::softmax_cross_entropy_workspace_bytes(stream.device(), rows));
      kernels::softmax_cross_entropy(stream, logits, labels, 0.1f, workspace.data(), dlogits, statistics);
      return Outputs{dlogits.values(), statistics.values()};
    });
}

TEST_F(KernelSchedules, Optimizer) {
  expect_same_bits([&](const Stream& stream) {
    const DeviceStepValues values(
        stream, {.learning_rate = 0.1f, .adamw_step_size = 0.1f, .adamw_inverse_root_correction = 2});
    const DeviceArray<float> statistics(stream, {3}, {1, 0, 8}), norm(stream, {1}, {900});
    const DeviceArray<float> gradient(stream, {kCount}, uniform(kCount, -1, 1, 1));
    const DeviceArray<float> weights(stream, {kCount}, uniform(kCount, -1, 1, 2));
    const DeviceArray<float> first(stream, {kCount}, uniform(kCount, -1, 1, 3));
    const DeviceArray<float> second(stream, {kCount}, uniform(kCount, 0, 1, 4));
    const RealArray rounded(stream, {kCount}, DType::bf16);
    const kernels::GradientScaling scaling{statistics.tensor().as<float>(), norm.tensor().as<float>(), 1};
    kernels::sgd_update(stream, {.momentum = 0.9f}, values.get(), scaling, gradient, weights, first, rounded);
    kernels::adamw_update(stream, {}, values.get(), scaling, gradient, weights, first, second, rounded);
    return Outputs{weights.values(), first.values(), second.values(), rounded.values()};
  });
}

TEST_F(KernelSchedules, Augment) {
  for (const DType dtype : kDTypes)
    expect_same_bits([&](const Stream& stream) {
      const Shape shape{3, 8, 8, 3};
      std::vector<std::uint8_t> bytes(shape.elements());
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(37 * i);
      const DeviceStepValues values(stream, {.epoch = 2});
      const RealArray y(stream, shape, dtype);
      const kernels::AugmentOptions options{
          .crop_padding = 2, .horizontal_flip = true, .values = values.get()};
      kernels::augment(stream, options, DeviceArray<std::uint8_t>(stream, shape, bytes),
                       DeviceArray<std::int64_t>(stream, {3}, {5, 6, 7}), y);
      return Outputs{y.values()};
    });
}

// The three products of a convolution or a linear layer.
template <class Kernel>
Outputs products(const Stream& stream, Kernel& kernel, Shape input, Shape weights, Shape output,
                 Precision precision) {
  const DType dtype = activation_dtype(precision);
  const Shape channels{weights[0]};
  const RealArray x(stream, input, dtype, uniform(input.elements(), -1, 1, 1));
  const RealArray w(stream, weights, dtype, uniform(weights.elements(), -1, 1, 2));
  const RealArray bias(stream, channels, dtype, uniform(weights[0], -1, 1, 3));
  const RealArray dy(stream, output, dtype, uniform(output.elements(), -1, 1, 4));
  const RealArray y(stream, output, dtype), dx(stream, input, dtype);
  const DeviceArray<float> dw(stream, weights), dbias(stream, channels);
  kernel.forward(stream, x, w, bias, y);
  kernel.backward_data(stream, dy, w, x, dx);
  kernel.backward_weights(stream, x, dy, dw, dbias);
  return {y.values(), dx.values(), dw.values(), dbias.values()};
}

TEST_F(KernelSchedules, Conv2d) {
  for (const Precision precision : test::kPrecisions)
    expect_same_bits([&](const Stream& stream) {
      const kernels::Conv2dShape s{.batch = 4,
                                   .in_height = 9,
                                   .in_width = 8,
                                   .in_channels = 8,
                                   .out_channels = 8,
                                   .kernel_height = 3,
                                   .kernel_width = 3,
                                   .padding = 1,
                                   .relu = true,
                                   .precision = precision};
      return products(stream, *kernels::make_conv2d(stream.device(), s), s.input(), s.weights(), s.output(),
                      precision);
    });
}

TEST_F(KernelSchedules, LinearByHand) {
  for (const Precision precision : test::kPrecisions)
    expect_same_bits([&](const Stream& stream) {
      const kernels::LinearShape s{300, 24, 16, true, true, precision};  // a long sum for the weights: split
      return products(stream, *kernels::cuda::make_tiled_linear(stream.device(), s), {300, 24}, {16, 24},
                      {300, 16}, precision);
    });
}

TEST_F(KernelSchedules, LinearByCublasLt) {
  for (const Precision precision : test::kPrecisions)
    expect_same_bits([&](const Stream& stream) {
      const kernels::LinearShape s{33, 24, 16, true, true, precision};
      return products(stream, *kernels::cuda::make_cublaslt_linear(stream.device(), s), {33, 24}, {16, 24},
                      {33, 16}, precision);
    });
}

}  // namespace
}  // namespace annulus
