// Training on 1, 2 and 4 virtual devices in every precision: the same weights as the CPU within rounding, and
// among each other bit for bit, under every schedule.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/base/buffer.h"
#include "core/nn/training_step.h"
#include "nccl/bucketed_reducer.h"
#include "nccl/nccl_communicator.h"
#include "tests/nccl/run_ranks.h"
#include "tests/nn/test_data.h"
#include "tests/virtual_gpu/virtual_gpu.h"

namespace annulus {
namespace {

constexpr std::size_t kMicroBatches = 4;
constexpr std::size_t kBatch = 10;  // micro-batches of 2 and 3 samples
constexpr std::uint64_t kSteps = 5;
constexpr std::size_t kBucketBytes = 2048;  // so that there are several
constexpr InputShape kInput{8, 8, 3};

std::vector<float> to_host(const Tensor& tensor, StreamView stream) {
  std::vector<float> host(tensor.elements());
  copy_bytes(stream, host.data(), tensor.data(), tensor.bytes());
  stream.synchronize();
  return host;
}

// The weights after a few steps of `spec` on these devices, one rank each, which sum gradients over NCCL in
// buckets.
std::vector<float> train(const std::string& spec, const std::vector<Device>& devices,
                         Precision precision = Precision::f32, std::uint64_t steps = kSteps) {
  test::TestImages images(kInput, kBatch, 10);
  std::vector<float> weights;
  test::run_threads(static_cast<int>(devices.size()), [&](Communicator& host) {
    const auto rank = static_cast<std::size_t>(host.rank());
    const DeviceGuard guard(devices[rank]);
    const auto communicator =
        devices[rank].is_cpu() ? make_identity_communicator() : make_nccl_communicator(host, devices[rank]);
    Model model(spec, kInput, devices[rank], {}, precision);
    model.initialise(1);
    const auto optimizer = Optimizer::make({.momentum = 0.9f}, model.arena());
    BucketedReducer synchronizer(*communicator, model.arena().gradients(), kBucketBytes);
    TrainingStep step(
        model, *optimizer, synchronizer,
        {.label_smoothing = 0.1f, .clip_norm = 2, .augment = {.crop_padding = 1, .horizontal_flip = true}});
    const std::size_t share = kMicroBatches / devices.size();
    const auto micro_batches = images.cut(0, kBatch, kMicroBatches, rank * share, (rank + 1) * share);
    std::size_t allocations = 0;
    for (std::uint64_t i = 0; i < steps; ++i) {
      step.run(micro_batches, 0.05f, 0, i);
      if (devices[rank].is_cpu()) continue;
      const std::size_t now = virtual_gpu::ledger(devices[rank].ordinal).total_allocations;
      EXPECT_TRUE(i == 0 || now == allocations) << "step " << i << " allocated device memory";
      allocations = now;
    }
    if (rank == 0) weights = to_host(model.arena().weights(), Stream(devices[rank]));
  });
  return weights;
}

std::vector<Device> virtual_devices(int count) {
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) devices.push_back(Device::cuda(i));
  return devices;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    squares += difference * difference;
  }
  return std::sqrt(squares);
}

// `tolerance` is for the distance from the CPU's weights, as a part of the way that they went.
void expect_same_training(const std::string& spec, Precision precision, double tolerance) {
  SCOPED_TRACE(spec + " in " + std::string(name_of(precision)));
  const std::vector<float> initial = train(spec, {Device::cpu()}, Precision::f32, 0);
  const std::vector<float> on_cpu = train(spec, {Device::cpu()});
  virtual_gpu::set_seed(1);
  const std::vector<float> on_one = train(spec, virtual_devices(1), precision);
  ASSERT_EQ(on_one.size(), on_cpu.size());
  EXPECT_LT(distance(on_one, on_cpu) / distance(on_cpu, initial), tolerance)
      << "CUDA kernels against the CPU's";
  for (const int count : precision == Precision::f32 ? std::vector{1, 2, 4} : std::vector{2, 4}) {
    virtual_gpu::set_seed(static_cast<std::uint64_t>(10 + count));
    EXPECT_EQ(train(spec, virtual_devices(count), precision), on_one) << count << " devices";
  }
}

// tf32 rounds operands to 11 bits, and bf16 whatever lies between layers to 8; five steps add up a few of
// those.
void expect_same_training(const std::string& spec) {
  expect_same_training(spec, Precision::f32, 1e-5);
  expect_same_training(spec, Precision::tf32, 2e-2);
  expect_same_training(spec, Precision::bf16, 5e-2);
}

// The first test of the program: the others use every device.
TEST(VirtualGpuTraining, ARankTouchesNoOtherDevice) {
  train("flatten linear(10)", {Device::cuda(1), Device::cuda(3)});
  EXPECT_FALSE(virtual_gpu::ledger(0).has_context);
  EXPECT_TRUE(virtual_gpu::ledger(1).has_context);
  EXPECT_FALSE(virtual_gpu::ledger(2).has_context);
  EXPECT_TRUE(virtual_gpu::ledger(3).has_context);
}

TEST(VirtualGpuTraining, Mlp) { expect_same_training("flatten linear(64) relu linear(32) relu linear(10)"); }

TEST(VirtualGpuTraining, Cnn) {
  expect_same_training(
      "conv2d(8,3,pad=1) relu maxpool(2) conv2d(12,3,pad=1) relu maxpool(2) flatten linear(16) relu "
      "dropout(0.25) "
      "linear(10)");
}

TEST(VirtualGpuTraining, Resnet) {
  expect_same_training(
      "conv2d(8,3,pad=1) batch_norm relu "
      "residual[conv2d(8,3,pad=1) batch_norm relu conv2d(8,3,pad=1) batch_norm] relu "
      "residual[conv2d(12,3,stride=2,pad=1) batch_norm relu conv2d(12,3,pad=1) batch_norm | "
      "conv2d(12,1,stride=2) batch_norm] relu global_average_pool linear(10)");
}

}  // namespace
}  // namespace annulus
