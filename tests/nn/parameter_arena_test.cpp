#include "core/nn/parameter_arena.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "core/base/error.h"
#include "core/nn/model.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

using Role = ArenaSlice::Role;

std::vector<ArenaSlice> slices() {
  return {{.name = "1.weight", .shape = {10, 7}},
          {.name = "1.bias", .shape = {10}},
          {.name = "0.running_mean", .shape = {65}, .role = Role::buffer},
          {.name = "0.weight", .shape = {64}},
          {.name = "0.running_var", .shape = {1}, .role = Role::buffer, .initial = {.constant = 1}}};
}

TEST(ParameterArena, lays_out_statistics_then_buffers_then_parameters) {
  const ParameterArena arena(slices(), Device::cpu());
  const struct {
    const char* name;
    std::size_t begin, end;
  } expected[] = {{"0.running_mean", 64, 129},
                  {"0.running_var", 192, 193},
                  {"1.weight", 256, 326},
                  {"1.bias", 384, 394},
                  {"0.weight", 448, 512}};
  ASSERT_EQ(arena.slices().size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(arena.slices()[i].name, expected[i].name);
    EXPECT_EQ(arena.slices()[i].range.begin, expected[i].begin);
    EXPECT_EQ(arena.slices()[i].range.end, expected[i].end);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.weights(arena.slices()[i]).data()) % 256, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.gradients(arena.slices()[i]).data()) % 256, 0u);
  }
  EXPECT_EQ(arena.statistics().begin, 0u);
  EXPECT_EQ(arena.statistics().end, 3u);
  EXPECT_EQ(arena.buffers().begin, 64u);
  EXPECT_EQ(arena.buffers().end, 256u);
  EXPECT_EQ(arena.parameters().begin, 256u);
  EXPECT_EQ(arena.parameters().end, 512u);
  EXPECT_EQ(arena.elements(), 512u);
  EXPECT_EQ(arena.parameter_count(), 144u);
  EXPECT_EQ(arena.weights(arena.find("1.weight")).shape(), (Shape{10, 7}));
}

TEST(ParameterArena, starts_with_zeros_in_the_padding_too) {
  const ParameterArena arena(slices(), Device::cpu());
  for (const Tensor& all : {arena.weights(), arena.gradients()})
    for (std::size_t i = 0; i < all.elements(); ++i) ASSERT_EQ(all.as<float>()[i], 0.0f);
}

TEST(ParameterArena, gradients_live_where_the_allocator_says) {
  std::vector<float> memory(2048);
  auto* aligned =
      reinterpret_cast<float*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 255) / 256 * 256);
  std::size_t asked = 0;
  const ParameterArena arena(slices(), Device::cpu(), [&](Device device, std::size_t bytes) {
    asked = bytes;
    return Buffer(device, aligned, bytes, [] {});
  });
  EXPECT_EQ(asked, 512 * sizeof(float));
  EXPECT_EQ(arena.gradients().data(), aligned);
  EXPECT_NE(arena.weights().data(), aligned);
  test::expect_error<ShapeError>(
      [&] {
        ParameterArena(slices(), Device::cpu(), [](Device device, std::size_t) { return Buffer(device, 4); });
      },
      {"gave 4 bytes", "needs 2048"});
}

TEST(ParameterArena, refuses_two_slices_of_one_name) {
  test::expect_error<ConfigError>(
      [] {
        ParameterArena({{.name = "a", .shape = {1}}, {.name = "a", .shape = {2}}}, Device::cpu());
      },
      {"named \"a\""});
}

TEST(ParameterArena, initial_values_are_uniform_in_the_bounds_of_pytorch) {
  Model model("conv2d(32,5,pad=2) batch_norm flatten linear(100)", {8, 8, 6});
  model.initialise(7);
  const auto moments = [&](const char* name) {
    const Tensor tensor = model.arena().weights(model.arena().find(name));
    double mean = 0, square = 0, largest = 0;
    for (std::size_t i = 0; i < tensor.elements(); ++i) {
      const double value = tensor.as<float>()[i];
      mean += value;
      square += value * value;
      largest = std::max(largest, std::abs(value));
    }
    const auto count = static_cast<double>(tensor.elements());
    return std::array<double, 3>{mean / count, square / count, largest};
  };
  const struct {
    const char* name;
    double fan_in;
  } affine[] = {{"0.weight", 150}, {"0.bias", 150}, {"3.weight", 2048}, {"3.bias", 2048}};
  for (const auto& [name, fan_in] : affine) {
    const double bound = 1 / std::sqrt(fan_in);
    const auto count = static_cast<double>(model.arena().find(name).range.size());
    const auto [mean, square, largest] = moments(name);
    // Five standard deviations of the sample's moments of a uniform distribution.
    EXPECT_NEAR(mean, 0, 5 * bound / std::sqrt(3 * count)) << name;
    EXPECT_NEAR(square, bound * bound / 3, 5 * bound * bound * std::sqrt(4 / 45.0 / count)) << name;
    EXPECT_LE(largest, bound * (1 + 1e-6)) << name;
    EXPECT_GE(largest, bound * 0.8) << name;
  }
  EXPECT_EQ(moments("1.weight"), (std::array<double, 3>{1, 1, 1}));
  EXPECT_EQ(moments("1.bias"), (std::array<double, 3>{0, 0, 0}));
  EXPECT_EQ(moments("1.running_mean"), (std::array<double, 3>{0, 0, 0}));
  EXPECT_EQ(moments("1.running_var"), (std::array<double, 3>{1, 1, 1}));
}

TEST(ParameterArena, initial_values_depend_on_seed_and_name_only) {
  const auto values = [](const char* spec, std::uint64_t seed, const char* name) {
    Model model(spec, {4, 4, 1});
    model.initialise(seed);
    const Tensor tensor = model.arena().weights(model.arena().find(name));
    return std::vector<float>(tensor.as<float>(), tensor.as<float>() + tensor.elements());
  };
  const auto weights = values("flatten linear(8)", 1, "1.weight");
  EXPECT_EQ(values("flatten linear(8)", 1, "1.weight"), weights);
  EXPECT_EQ(values("flatten linear(8) relu linear(3)", 1, "1.weight"), weights);
  EXPECT_NE(values("flatten linear(8)", 2, "1.weight"), weights);
  EXPECT_NE(values("relu flatten linear(8)", 1, "2.weight"), weights);
}

}  // namespace
}  // namespace annulus
