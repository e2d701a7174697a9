#include "core/nn/model.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/nn/network.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

using test::expect_error;

TEST(Model, named_models_have_the_parameters_of_their_pytorch_twins) {
  const struct {
    const char* name;
    InputShape input;
    std::size_t parameters;
  } models[] = {
      {"mlp", {28, 28, 1}, 784 * 512 + 512 + 512 * 256 + 256 + 256 * 10 + 10},
      {"lenet", {28, 28, 1}, 61706},
      {"cnn", {28, 28, 1}, 421642},
      {"resnet", {32, 32, 3}, 78042},
  };
  for (const auto& expected : models) {
    const Model model(expand_model(expected.name, 10), expected.input);
    EXPECT_EQ(model.arena().parameter_count(), expected.parameters) << expected.name;
    EXPECT_EQ(model.classes(), 10u);
    EXPECT_EQ(model.spec(), expand_model(expected.name, 10));
  }
}

TEST(Model, parameters_have_pytorch_names_and_shapes) {
  const Model model(
      "conv2d(8,3) relu residual[ conv2d(8,3,pad=1,bias=0) batch_norm | conv2d(8,1) ] flatten linear(5)",
      {6, 6, 2});
  const ParameterArena& arena = model.arena();
  EXPECT_EQ(arena.find("0.weight").shape, (Shape{8, 2, 3, 3}));
  EXPECT_EQ(arena.find("0.bias").shape, (Shape{8}));
  EXPECT_EQ(arena.find("2.main.0.weight").shape, (Shape{8, 8, 3, 3}));
  EXPECT_EQ(arena.find("2.main.1.running_var").role, ArenaSlice::Role::buffer);
  EXPECT_EQ(arena.find("2.shortcut.0.bias").shape, (Shape{8}));
  EXPECT_EQ(arena.find("4.weight").shape, (Shape{5, 8 * 4 * 4}));
  expect_error<ConfigError>([&] { arena.find("4.wieght"); }, {"no tensor \"4.wieght\"", "\"4.weight\""});
  expect_error<ConfigError>([&] { arena.find("2.main.0.bias"); }, {"no tensor \"2.main.0.bias\""});
}

TEST(Model, arena_is_in_the_order_in_which_backward_finishes) {
  const Model model(
      "conv2d(8,3) batch_norm residual[ conv2d(8,3,pad=1) batch_norm | conv2d(8,1) ] flatten linear(5)",
      {6, 6, 2});
  std::vector<std::string> names;
  for (const ArenaSlice& slice : model.arena().slices()) names.push_back(slice.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{
                "2.main.1.running_mean", "2.main.1.running_var", "1.running_mean", "1.running_var",
                "4.weight", "4.bias", "2.main.1.weight", "2.main.1.bias", "2.main.0.weight", "2.main.0.bias",
                "2.shortcut.0.weight", "2.shortcut.0.bias", "1.weight", "1.bias", "0.weight", "0.bias"}));

  // What is announced covers the arena in order, without gaps.
  std::size_t end = 0;
  for (const ElementRange range : model.gradient_ranges()) {
    EXPECT_EQ(range.begin, end);
    EXPECT_GT(range.end, range.begin);
    end = range.end;
  }
  EXPECT_EQ(end, model.arena().elements());
}

TEST(Model, layers_that_do_not_fit_are_named) {
  const struct {
    const char* spec;
    std::initializer_list<std::string_view> message;
  } faults[] = {
      {"conv2d(8,7) flatten linear(10)", {"layer 0 conv2d(8,7)", "window of 7", "6x5x2"}},
      {"conv2d(8,7,pad=1) conv2d(8,9) flatten linear(10)", {"layer 1 conv2d(8,9)", "window of 9"}},
      {"maxpool(2) maxpool(2) maxpool(2) flatten linear(10)", {"layer 2 maxpool(2)", "1x1x2"}},
      {"conv2d(8,9,pad=1) flatten linear(10)", {"layer 0", "padded by 1"}},
      {"maxpool(16) flatten linear(10)", {"layer 0 maxpool(16)", "up to 15"}},
      {"conv2d(8,3) linear(10)", {"layer 1 linear(10)", "flat input", "flatten"}},
      {"flatten conv2d(8,3)", {"layer 1 conv2d(8,3)", "needs images", "60 features"}},
      {"flatten global_average_pool linear(3)", {"layer 1 global_average_pool", "needs images"}},
      {"residual[ relu conv2d(3,1) ] flatten linear(10)", {"layer 0 residual", "6x5x3", "6x5x2"}},
      {"residual[ conv2d(2,3,pad=1) conv2d(2,9) ] flatten", {"layer 0.main.1 conv2d(2,9)"}},
      {"conv2d(8,3)", {"layer 0 conv2d(8,3)", "flatten linear(CLASSES)"}},
      {"flatten relu", {"no parameters"}},
  };
  for (const auto& fault : faults) {
    SCOPED_TRACE(fault.spec);
    expect_error<ConfigError>([&] { Model(fault.spec, {6, 5, 2}); }, fault.message);
  }
  expect_error<ConfigError>([] { Model("flatten linear(2)", {0, 5, 2}); }, {"0x5x2"});
}

TEST(Model, refuses_a_precision_that_the_device_has_not) {
  EXPECT_EQ(Model("flatten linear(2)", {2, 2, 1}).precision(), Precision::f32);
  for (const Precision precision : {Precision::tf32, Precision::bf16})
    expect_error<ConfigError>(
        [&] {
          Model("flatten linear(2)", {2, 2, 1}, Device::cpu(), {}, precision);
        },
        {"precision " + std::string(name_of(precision)) + " needs a CUDA device"});
}

TEST(Model, batch_sizes_share_one_workspace) {
  Model model("conv2d(8,3) relu maxpool(2) flatten linear(10)", {12, 12, 1});
  Network& large = model.network(32);
  const std::size_t bytes = model.workspace_bytes();
  EXPECT_EQ(bytes, large.workspace_bytes());
  Network& small = model.network(5);
  EXPECT_EQ(model.workspace_bytes(), bytes);
  EXPECT_EQ(&model.network(32), &large);
  EXPECT_EQ(&model.network(5), &small);
  EXPECT_EQ(small.logits().shape(), (Shape{5, 10}));
  // The convolution's output and its gradient never live at once with anything but their neighbours.
  const std::size_t activation = 32 * 10 * 10 * 8 * sizeof(float);
  EXPECT_LT(bytes, 2 * activation);
}

TEST(Model, moves) {
  Model model("flatten linear(10)", {4, 4, 1});
  model.initialise(1);
  const Tensor logits = model.network(2).logits();
  Model moved(std::move(model));
  EXPECT_EQ(moved.network(2).logits().data(), logits.data());
}

}  // namespace
}  // namespace annulus
