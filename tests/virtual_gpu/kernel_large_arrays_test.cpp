// Index arithmetic beyond 2^31 elements, without the memory: arrays are sparse, and of every launch only one
// block runs, the one that the last elements belong to. (Matrix products: tests/kernels/linear_test.cpp,
// conv2d_test.cpp.)
#include <gtest/gtest.h>

#include <vector>

#include "core/base/half.h"
#include "core/base/philox.h"
#include "kernels/activation.h"
#include "kernels/augment.h"
#include "kernels/batch_norm.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"
#include "kernels/pool2d.h"
#include "kernels/reduce.h"
#include "kernels/softmax_cross_entropy.h"
#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/huge_array.h"

namespace annulus {
namespace {

using test::DeviceArray;
using test::DeviceStepValues;
using test::HugeArray;

constexpr std::size_t kMany = std::size_t{1} << 31;
constexpr std::size_t kCount = kMany + 5;
const std::vector<float> kLast{-1, 2, -3, 4, -5};

class KernelLargeArrays : public ::testing::Test {
 protected:
  // Unwritten elements are zeros: the block of a grid-stride loop has many.
  virtual_gpu::SparseAllocations sparse_{virtual_gpu::SparseContents::zeros};
  Stream stream_{Device::cuda(0)};
};

// Grid-stride loops: 2^31 elements are a whole number of turns, so the first block has those after them.
class KernelLargeLoops : public KernelLargeArrays {
 protected:
  virtual_gpu::OnlyBlocks first_{[](std::size_t) { return std::vector<std::size_t>{0}; }};
};

// Exact grids.
class KernelLargeGrids : public KernelLargeArrays {
 protected:
  virtual_gpu::OnlyBlocks last_{[](std::size_t blocks) { return std::vector<std::size_t>{blocks - 1}; }};
};

TEST_F(KernelLargeLoops, Relu) {
  HugeArray x(stream_, {kCount}), y(stream_, {kCount});
  x.set(kMany, kLast);
  kernels::relu_forward(stream_, x, y);
  test::expect_equal("y", y.get(kMany, 5), std::vector<float>{0, 2, 0, 4, 0});
}

TEST_F(KernelLargeLoops, Cast) {
  HugeArray x(stream_, {kCount});
  HugeArray<BFloat16> y(stream_, {kCount});
  x.set(kMany, kLast);
  kernels::cast(stream_, x, y);
  const auto last = y.get(kMany, 5);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(to_float(last[i]), kLast[i]);
}

TEST_F(KernelLargeLoops, Dropout) {
  HugeArray x(stream_, {1, kCount}), y(stream_, {1, kCount});
  x.set(kMany, kLast);
  const DeviceStepValues values(stream_, {.step = 2});
  kernels::dropout(stream_, {.seed = 1, .values = values.get()}, 0.5f, x, y);
  const Philox random(1, RandomPurpose::dropout, 2, 0);
  std::vector<float> expected(5);
  for (std::size_t i = 0; i < 5; ++i) expected[i] = random.uniform(kMany + i) < 0.5f ? 0 : 2 * kLast[i];
  test::expect_equal("y", y.get(kMany, 5), expected);
}

TEST_F(KernelLargeLoops, Sum) {
  HugeArray x(stream_, {kCount});
  x.set(kMany, kLast);
  const Buffer workspace(stream_.device(), kernels::reduce_workspace_bytes(stream_.device(), kCount));
  HugeArray sum(stream_, {1}), largest(stream_, {1});
  kernels::sum(stream_, x, workspace.data(), sum);
  EXPECT_EQ(sum.get(0, 1)[0], -3);
  kernels::absmax(stream_, x, workspace.data(), largest);
  EXPECT_EQ(largest.get(0, 1)[0], 5);
}

TEST_F(KernelLargeLoops, Sgd) {
  HugeArray gradient(stream_, {kCount}), weights(stream_, {kCount}), momentum(stream_, {kCount});
  gradient.set(kMany, kLast);
  momentum.set(kMany, {2, 2, 2, 2, 2});
  const DeviceArray<float> statistics(stream_, {3}, {1, 0, 1});
  const DeviceStepValues values(stream_, {.learning_rate = 1});
  kernels::sgd_update(stream_, {.momentum = 0.5f}, values.get(),
                      {.statistics = statistics.tensor().as<float>()}, gradient, weights, momentum);
  test::expect_equal("momentum", momentum.get(kMany, 5), std::vector<float>{0, 3, -2, 5, -4});
  test::expect_equal("weights", weights.get(kMany, 5), std::vector<float>{0, -3, 2, -5, 4});
}

TEST_F(KernelLargeLoops, MaxPool2d) {
  const kernels::Pool2dShape s{(1 << 16) + 1, 1, 1 << 15, 1, 1, 1};  // 2^31 elements, and one image more
  HugeArray x(stream_, s.input()), y(stream_, s.output()), dx(stream_, s.input());
  HugeArray<std::uint8_t> argmax(stream_, s.output());
  x.set(kMany, kLast);
  kernels::max_pool2d_forward(stream_, s, x, y, argmax);
  test::expect_equal("y", y.get(kMany, 5), kLast);
  kernels::max_pool2d_backward(stream_, s, x, argmax, {}, dx);
  test::expect_equal("dx", dx.get(kMany, 5), kLast);
}

TEST_F(KernelLargeLoops, GlobalAveragePool) {
  const Shape images{(1 << 15) + 1, 16, 16, 256};  // 2^31 elements, and one image of 256 pixels more
  const Shape means{images[0], images[3]};
  HugeArray x(stream_, images), dx(stream_, images), y(stream_, means), dy(stream_, means);
  x.set(kMany, {-256, 512, -768, 1024, -1280});
  kernels::global_average_pool_forward(stream_, x, y);
  test::expect_equal("y", y.get(kMany / 256, 5), kLast);
  dy.set(kMany / 256, {-256, 512, -768, 1024, -1280});
  kernels::global_average_pool_backward(stream_, dy, dx);
  test::expect_equal("dx", dx.get(kMany, 5), kLast);
}

TEST_F(KernelLargeLoops, BatchNorm) {
  constexpr std::size_t kRows = (std::size_t{1} << 26) + 1, kChannels = 32;
  HugeArray x(stream_, {kRows, kChannels}), y(stream_, {kRows, kChannels});
  x.set(kMany, kLast);
  const std::vector<float> zeros(kChannels, 0.0f), ones(kChannels, 1.0f);
  const Shape each{kChannels};
  const DeviceArray<float> scale(stream_, each, ones), shift(stream_, each, zeros), mean(stream_, each, ones);
  const DeviceArray<float> variance(stream_, each, std::vector<float>(kChannels, 4.0f));
  kernels::batch_norm_inference(stream_, x, scale, shift, mean, variance, 0, y);
  test::expect_equal("y", y.get(kMany, 5), std::vector<float>{-1, 0.5f, -2, 1.5f, -3});
}

// The last of 1024 blocks ends with the last elements; a second launch adds what the blocks found.
TEST_F(KernelLargeGrids, Sum) {
  constexpr std::size_t kElements = kMany + (1 << 20);  // one turn of the blocks more
  HugeArray x(stream_, {kElements});
  x.set(kElements - 5, kLast);
  const Buffer workspace(stream_.device(), kernels::reduce_workspace_bytes(stream_.device(), kElements));
  HugeArray sum(stream_, {1});
  kernels::sum(stream_, x, workspace.data(), sum);
  EXPECT_EQ(sum.get(0, 1)[0], -3);
}

// Two chunks of rows, of which the second is added up here: that with the last row.
TEST_F(KernelLargeGrids, BatchNorm) {
  constexpr std::size_t kRows = 513, kChannels = (std::size_t{1} << 22) + 5;
  HugeArray x(stream_, {kRows, kChannels}), y(stream_, {kRows, kChannels}), dx(stream_, {kRows, kChannels});
  HugeArray scale(stream_, {kChannels}), shift(stream_, {kChannels}), mean(stream_, {kChannels});
  HugeArray inverse_std(stream_, {kChannels}), variance(stream_, {kChannels});
  HugeArray dscale(stream_, {kChannels}), dshift(stream_, {kChannels});
  const std::size_t end = kRows * kChannels;
  x.set(end - 5, {-513, 1026, -1539, 2052, -2565});
  const Buffer workspace(stream_.device(),
                         kernels::batch_norm_workspace_bytes(stream_.device(), kRows, kChannels));
  kernels::batch_norm_forward(stream_, x, scale, shift, 1, workspace.data(), y, mean, inverse_std, variance);
  test::expect_equal("mean", mean.get(kChannels - 5, 5), kLast);
  kernels::batch_norm_backward(stream_, x, x, scale, mean, inverse_std, workspace.data(), dx, dscale, dshift);
  test::expect_equal("dshift", dshift.get(kChannels - 5, 5),
                     std::vector<float>{-513, 1026, -1539, 2052, -2565});
}

TEST_F(KernelLargeGrids, SoftmaxCrossEntropy) {
  constexpr std::size_t kRows = (std::size_t{1} << 26) + 1, kClasses = 32;
  HugeArray logits(stream_, {kRows, kClasses}), dlogits(stream_, {kRows, kClasses});
  HugeArray<std::int32_t> labels(stream_, {kRows});
  labels.set(kRows - 1, {7});
  HugeArray statistics(stream_, {3});
  const Buffer workspace(stream_.device(),
                         kernels::softmax_cross_entropy_workspace_bytes(stream_.device(), kRows));
  kernels::softmax_cross_entropy(stream_, logits, labels, 0, workspace.data(), dlogits, statistics);
  std::vector<float> expected(kClasses, 1.0f / kClasses);  // of equal logits
  expected[7] -= 1;
  test::expect_close("dlogits", dlogits.get(kMany, kClasses), expected, {2, 0});
  EXPECT_EQ(statistics.get(2, 1)[0], 1) << "rows of the block that ran";
}

TEST_F(KernelLargeGrids, Augment) {
  const Shape shape{(1 << 16) + 1, 128, 256, 1};  // 2^31 elements, and one image more
  HugeArray<std::uint8_t> x(stream_, shape);
  HugeArray<std::int64_t> index(stream_, {shape[0]});
  HugeArray y(stream_, shape);
  const std::size_t last = shape.elements() - 3;
  x.set(last, {51, 102, 255});
  kernels::augment(stream_, {}, x, index, y);
  test::expect_close("y", y.get(last, 3), std::vector<float>{0.2f, 0.4f, 1.0f}, {2, 0});
}

TEST_F(KernelLargeGrids, TransposeInner) {
  constexpr std::size_t kImages = (1 << 16) + 1, kRows = 128, kColumns = 256;
  HugeArray x(stream_, {kImages, kRows, kColumns}), y(stream_, {kImages, kColumns, kRows});
  const std::size_t end = kImages * kRows * kColumns;
  x.set(end - kColumns - 2, {1, 2});  // the last two of the last row but one
  x.set(end - 2, {3, 4});
  kernels::transpose_inner(stream_, x, y);
  test::expect_equal("last column", y.get(end - 2, 2), std::vector<float>{2, 4});
  test::expect_equal("the one before", y.get(end - kRows - 2, 2), std::vector<float>{1, 3});
}

}  // namespace
}  // namespace annulus
