// Parity with PyTorch: the losses of the first SGD-momentum steps of `mlp` and `cnn` against those that
// tests/data/make_torch_parity.py recorded. Its head says how weights and batches are drawn; their CRC-32
// proves that both sides start from the same bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/base/philox.h"
#include "core/nn/training_step.h"

namespace annulus {
namespace {

constexpr std::size_t kSide = 28, kPixels = kSide * kSide, kClasses = 10;
constexpr double kTolerance = 1e-4;  // relative; float32 and float64 in PyTorch differ by less than 1e-6

nlohmann::json golden() {
  std::ifstream file(ANNULUS_TEST_DATA "/torch_parity.json");
  return nlohmann::json::parse(file);
}

/// CRC-32 as in zlib, continued from `crc`.
std::uint32_t crc32(const void* data, std::size_t bytes, std::uint32_t crc = 0) {
  crc = ~crc;
  for (std::size_t i = 0; i < bytes; ++i) {
    crc ^= static_cast<const unsigned char*>(data)[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320u : 0u);
  }
  return ~crc;
}

struct Samples {
  std::vector<std::uint8_t> images;
  std::vector<std::int32_t> labels;
  std::vector<std::int64_t> index;

  Samples(std::uint64_t seed, std::size_t count) {
    const Philox random_class(seed, RandomPurpose::synthetic, 0),
        random_label(seed, RandomPurpose::synthetic, 1);
    for (std::size_t n = 0; n < count; ++n) {
      const std::uint32_t image_class = random_class.below(n, kClasses);
      const Philox pattern(seed, RandomPurpose::synthetic, 2, image_class);
      const Philox noise(seed, RandomPurpose::synthetic, 3, n);
      for (std::size_t p = 0; p < kPixels; ++p) {
        const std::size_t cell = p / kSide / 4 * 7 + p % kSide / 4;
        images.push_back(static_cast<std::uint8_t>((pattern.word(cell) & 1) * 64 + (noise.word(p) >> 25)));
      }
      labels.push_back(static_cast<std::int32_t>(n % 4 == 3 ? random_label.below(n, kClasses) : image_class));
      index.push_back(static_cast<std::int64_t>(n));
    }
  }

  MicroBatch batch(std::size_t begin, std::size_t size) {
    return {.images = Tensor(images.data() + begin * kPixels, {size, kSide, kSide, 1}, DType::u8),
            .labels = Tensor(labels.data() + begin, {size}, DType::i32),
            .sample_index = Tensor(index.data() + begin, {size}, DType::i64)};
  }
};

/// In the order of PyTorch's state_dict, which is that of the layers, weight before bias.
std::vector<const ArenaSlice*> in_state_dict_order(const ParameterArena& arena) {
  std::vector<const ArenaSlice*> slices;
  for (std::size_t layer = 0; slices.size() < arena.slices().size(); ++layer)
    for (const char* kind : {".weight", ".bias"})
      for (const ArenaSlice& slice : arena.slices())
        if (slice.name == std::to_string(layer) + kind) slices.push_back(&slice);
  return slices;
}

/// Fills the model as the script does and returns the CRC-32 of all tensors in state_dict order.
std::uint32_t set_weights(Model& model, std::uint64_t seed) {
  const auto slices = in_state_dict_order(model.arena());
  std::uint32_t crc = 0;
  float bound = 0;
  for (std::size_t k = 0; k < slices.size(); ++k) {
    const Tensor tensor = model.arena().weights(*slices[k]);
    if (slices[k]->shape.rank() > 1) {
      const auto fan_in = static_cast<double>(tensor.elements() / tensor.shape()[0]);
      bound = static_cast<float>(1 / std::sqrt(fan_in));
    }
    const Philox random(seed, RandomPurpose::initialise, k);
    for (std::size_t i = 0; i < tensor.elements(); ++i)
      tensor.as<float>()[i] = (2 * random.uniform(i) - 1) * bound;
    crc = crc32(tensor.data(), tensor.bytes(), crc);
  }
  return crc;
}

/// Every step's batch cut into `micro_batches` equal ones.
void expect_parity(const std::string& name, std::size_t micro_batches) {
  SCOPED_TRACE(name + ", " + std::to_string(micro_batches) + " micro-batches");
  const nlohmann::json file = golden();
  const auto seed = file["seed"].get<std::uint64_t>();
  const auto steps = file["steps"].get<std::size_t>(), batch = file["batch"].get<std::size_t>();
  const nlohmann::json& expected = file["models"][name];

  Samples samples(seed, steps * batch);
  ASSERT_EQ(crc32(samples.images.data(), samples.images.size()), file["images_crc32"].get<std::uint32_t>());
  ASSERT_EQ(crc32(samples.labels.data(), samples.labels.size() * sizeof(std::int32_t)),
            file["labels_crc32"].get<std::uint32_t>());

  Model model(expand_model(name, kClasses), {kSide, kSide, 1});
  ASSERT_EQ(set_weights(model, seed), expected["weights_crc32"].get<std::uint32_t>());
  const auto optimizer = Optimizer::make({.momentum = file["momentum"].get<float>()}, model.arena());
  IdentitySynchronizer synchronizer;
  TrainingOptions options;
  options.augment.mean = {0.5f};
  options.augment.inverse_std = {4};
  TrainingStep training(model, *optimizer, synchronizer, options);

  for (std::size_t step = 0; step < steps; ++step) {
    std::vector<MicroBatch> cut;
    const std::size_t size = batch / micro_batches;
    for (std::size_t i = 0; i < micro_batches; ++i) {
      cut.push_back(samples.batch(step * batch + i * size, size));
      cut.back().first_sample = i * size;
    }
    const StepResult result = training.run(cut, file["learning_rate"].get<float>(), 0, step);
    ASSERT_EQ(result.samples, batch);
    const double loss = result.loss_sum / static_cast<double>(batch);
    const double torch = expected["losses"][step].get<double>();
    EXPECT_NEAR(loss, torch, kTolerance * torch) << "step " << step;
  }
}

TEST(TorchParity, losses_of_mlp_agree) {
  for (const std::size_t micro_batches : {1, 4}) expect_parity("mlp", micro_batches);
}

TEST(TorchParity, losses_of_cnn_agree) {
  for (const std::size_t micro_batches : {1, 4}) expect_parity("cnn", micro_batches);
}

}  // namespace
}  // namespace annulus
