#include "kernels/dropout.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_values.h"
#include "tests/support/storages.h"

namespace annulus {
namespace {

using kernels::DropoutKey;
using test::DeviceArray;

// A DropoutKey with its step.
struct Key {
  std::uint64_t seed, step;
  std::uint32_t layer;
  std::uint64_t first_sample;
};

constexpr Key kKey{.seed = 11, .step = 3, .layer = 2, .first_sample = 40};

// `x` into `y`, with the key's step in memory of the device.
void drop(const Stream& stream, const Key& key, float probability, const Tensor& x, const Tensor& y) {
  const test::DeviceStepValues values(stream, {.step = key.step});
  const DropoutKey device_key{key.seed, values.get(), key.layer, key.first_sample};
  kernels::dropout(stream, device_key, probability, x, y);
  stream.synchronize();
}

std::vector<float> run(const test::Storage& storage, const Key& key, float probability, Shape shape,
                       const std::vector<float>& x) {
  const auto& [device, dtype, skip] = storage;
  const Stream stream(device);
  const test::RealArray device_x(stream, shape, dtype, x, skip), y(stream, shape, dtype, skip);
  drop(stream, key, probability, device_x, y);
  return y.values();
}

TEST(Dropout, drops_what_its_definition_drops) {
  for (const float probability : {0.1f, 0.5f, 0.9f})
    for (const Shape shape :
         {Shape{0, 5}, Shape{1, 1}, Shape{3, 7}, Shape{2, 16}, Shape{5, 129}, Shape{2, 3, 3, 5}}) {
      const std::size_t features = shape[0] == 0 ? 0 : shape.elements() / shape[0];
      // Of few bits: the only rounding is that of the quotient.
      const auto x = test::integers(shape.elements(), 100, 1);
      std::vector<float> expected(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        const Philox random(kKey.seed, RandomPurpose::dropout, kKey.step,
                            (std::uint64_t{kKey.layer} << 32) + kKey.first_sample + i / features);
        expected[i] = random.uniform(i % features) < probability ? 0 : x[i] / (1 - probability);
      }
      for (const test::Storage& storage : test::storages()) {
        SCOPED_TRACE(fmt::format("{} of {}, {}", probability, shape.to_string(), storage.describe()));
        test::expect_close("y", run(storage, kKey, probability, shape, x), expected,
                           {1, 0, test::epsilon_of(storage.dtype)});
      }
    }
}

TEST(Dropout, keeps_an_element_whose_number_equals_the_probability) {
  const Philox random(kKey.seed, RandomPurpose::dropout, kKey.step,
                      (std::uint64_t{kKey.layer} << 32) + kKey.first_sample);
  const float probability = random.uniform(5);
  for (const Device device : test::test_devices())
    EXPECT_NE(run({device}, kKey, probability, {1, 8}, std::vector<float>(8, 1.0f))[5], 0);
}

TEST(Dropout, does_not_depend_on_how_samples_are_split) {
  const auto x = test::uniform(6 * 33, -1, 1, 1);
  for (const Device device : test::test_devices()) {
    const auto all = run({device}, kKey, 0.5f, {6, 33}, x);
    Key second_half = kKey;
    second_half.first_sample += 3;
    const auto middle = static_cast<std::ptrdiff_t>(3 * 33);
    EXPECT_EQ(run({device}, second_half, 0.5f, {3, 33}, {x.begin() + middle, x.end()}),
              std::vector<float>(all.begin() + middle, all.end()));
  }
}

TEST(Dropout, keeps_the_mean_and_varies_with_every_part_of_the_key) {
  const std::size_t count = 100000;
  const std::vector<float> ones(count, 1.0f);
  for (const Device device : test::test_devices()) {
    const auto y = run({device}, kKey, 0.25f, {1, count}, ones);
    double sum = 0;
    for (const float value : y) sum += static_cast<double>(value);
    // One standard deviation of the mean is sqrt(0.25 / 0.75 / count) = 0.0018.
    EXPECT_NEAR(sum / static_cast<double>(count), 1.0, 0.01);
    EXPECT_EQ(y, run({device}, kKey, 0.25f, {1, count}, ones));
    for (const Key& other : {Key{12, 3, 2, 40}, Key{11, 4, 2, 40}, Key{11, 3, 1, 40}, Key{11, 3, 2, 41}})
      EXPECT_NE(y, run({device}, other, 0.25f, {1, count}, ones));
  }
}

TEST(Dropout, works_in_place_and_keeps_all_at_probability_zero) {
  const auto x = test::uniform(70, -1, 1, 1);
  for (const Device device : test::test_devices()) {
    EXPECT_EQ(run({device}, kKey, 0, {2, 35}, x), x);
    const Stream stream(device);
    const DeviceArray<float> y(stream, {2, 35}, x);
    drop(stream, kKey, 0.5f, y, y);
    EXPECT_EQ(y.values(), run({device}, kKey, 0.5f, {2, 35}, x));
  }
}

TEST(Dropout, drops_nan_too) {
  const std::vector<float> x(64, std::numeric_limits<float>::quiet_NaN());
  for (const Device device : test::test_devices()) {
    const auto y = run({device}, kKey, 0.5f, {1, 64}, x);
    EXPECT_GT(std::count(y.begin(), y.end(), 0.0f), 0);
    EXPECT_GT(std::count_if(y.begin(), y.end(), [](float value) { return std::isnan(value); }), 0);
  }
}

TEST(Dropout, refuses_other_probabilities) {
  for (const float probability : {-0.1f, 1.0f, std::numeric_limits<float>::quiet_NaN()})
    test::expect_error<ConfigError>([&] { run({Device::cpu()}, kKey, probability, {1}, {1}); },
                                    {"dropout: the probability must be in [0, 1)"});
}

TEST(Dropout, refuses_bf16_on_the_cpu) {
  test::expect_error<ShapeError>(
      [] {
        run({Device::cpu(), DType::bf16}, kKey, 0.5f, {1}, {1});
      },
      {"dropout: x is bf16, which needs a CUDA device"});
}

}  // namespace
}  // namespace annulus
