// Bad input ends with one clear line and a non-zero exit, and leaves nothing behind.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/idx_files.h"
#include "tests/support/train_program.h"

namespace annulus {
namespace {

using namespace test;

class BadInput : public testing::Test {
 protected:
  BadInput() {
    const auto set = [&](const char* name, const Bytes& images, const Bytes& labels) {
      const std::string folder = inputs_ / name;
      write_idx_dataset(folder, 40, 20, 8, 8);
      write_bytes(folder + "/train-images-idx3-ubyte", images);
      write_bytes(folder + "/train-labels-idx1-ubyte", labels);
    };
    const Bytes images = idx_bytes({40, 8, 8}, idx_pixels(40 * 64)), labels = idx_bytes({40}, idx_labels(40));
    Bytes truncated = images, alien = images, wild = labels;
    truncated.resize(1000);
    alien[0] = 'P';
    wild[20] = 200;
    set("good", images, labels);
    set("truncated", truncated, labels);
    set("alien", alien, labels);
    set("count", images, idx_bytes({39}, idx_labels(39)));
    set("wild", images, wild);
  }

  std::string data(const char* name) const { return "idx:" + (inputs_ / name); }

  /// Runs in an empty folder and expects one line with all of `parts`.
  void expect_refusal(const std::vector<std::string>& arguments, const std::vector<std::string>& parts) {
    const TemporaryDirectory folder;
    const ProcessResult result = train(arguments, folder.path());
    const std::string command = testing::PrintToString(arguments);
    EXPECT_GT(result.status, 0) << command;
    EXPECT_LT(result.status, 128) << command;
    EXPECT_EQ(count_lines(result.err), 1u) << command << "\n" << result.err;
    EXPECT_EQ(result.err.find("annulus-train: "), 0u) << result.err;
    for (const std::string& part : parts) {
      EXPECT_NE(result.err.find(part), std::string::npos)
          << command << ": expected " << part << " in " << result.err;
    }
    EXPECT_EQ(list_files(folder.path()), std::vector<std::string>()) << command;
  }

  /// The same on one rank and on two.
  void expect_refusal_at_any_world_size(const std::vector<std::string>& arguments,
                                        const std::vector<std::string>& parts) {
    for (const char* ranks : {"1", "2"}) expect_refusal(with(arguments, {"--ranks", ranks}), parts);
  }

  /// Enough to train on `data`, so that only what a test adds is wrong.
  std::vector<std::string> run_on(const std::string& data) const {
    return {"--model", "mlp", "--data", data, "--device", "cpu", "--batch-size", "8", "--epochs", "1"};
  }

  const TemporaryDirectory inputs_;
};

TEST_F(BadInput, Data) {
  expect_refusal_at_any_world_size(run_on("idx:/nowhere"), {"/nowhere"});
  expect_refusal_at_any_world_size(run_on(data("truncated")), {"train-images-idx3-ubyte"});
  expect_refusal_at_any_world_size(run_on(data("alien")), {"train-images-idx3-ubyte"});
  expect_refusal_at_any_world_size(run_on(data("count")), {"39", "40"});
  expect_refusal_at_any_world_size(run_on(data("wild")), {"train-labels-idx1-ubyte", "200"});
  expect_refusal_at_any_world_size(run_on("fashion-minst"), {"fashion-mnist"});
  EXPECT_EQ(train(run_on(data("good"))).status, 0) << "the cases differ from good data by one fault each";
}

TEST_F(BadInput, ModelThatDoesNotFitTheData) {
  const auto refuse = [&](const char* model, const std::vector<std::string>& parts) {
    expect_refusal_at_any_world_size(with(run_on(data("good")), {"--model", model}), parts);
  };
  refuse("conv2d(4,11) flatten linear(10)", {"conv2d(4,11)", "8"});
  refuse("cnm", {"cnm", "cnn"});
  refuse("flatten liner(10)", {"liner", "linear"});
  refuse("flatten linear(7)", {"7", "10"});
}

TEST_F(BadInput, SizesThatDoNotFit) {
  const auto run = run_on(data("good"));
  expect_refusal_at_any_world_size(with(run, {"--batch-size", "10", "--micro-batches", "4"}),
                                   {"10", "4", "8", "12"});
  expect_refusal(with(run, {"--ranks", "3"}), {"8", "3", "6", "9"});
  expect_refusal(with(run, {"--micro-batches", "8", "--ranks", "3"}), {"3", "1, 2, 4"});
  expect_refusal_at_any_world_size(with(run, {"--batch-size", "64", "--drop-last"}), {"64", "40"});
}

TEST_F(BadInput, Options) {
  const auto run = run_on(data("good"));
  expect_refusal_at_any_world_size(with(run, {"--momentun", "0.5"}), {"--momentun", "--momentum"});
  expect_refusal_at_any_world_size(with(run, {"--lr", "-1"}), {"--lr"});
  expect_refusal_at_any_world_size(with(run, {"--precision", "bf16"}),
                                   {"--precision bf16", "CUDA", "--precision f32"});
  const std::string config = inputs_ / "config.json";
  std::ofstream(config) << R"({"sede": 3})";
  expect_refusal_at_any_world_size(with(run, {"--config", config}), {"sede", "seed"});
  expect_refusal_at_any_world_size(with(run, {"--config", inputs_ / "good"}), {inputs_ / "good"});
  expect_refusal_at_any_world_size(with(run, {"--config", ""}), {"--config"});
  expect_refusal_at_any_world_size(with(run, {"--metrics", "/nowhere/m.jsonl"}), {"/nowhere"});
  expect_refusal_at_any_world_size(with(run, {"--checkpoint-dir", "r\xff"}), {"--checkpoint-dir", "UTF-8"});
}

TEST_F(BadInput, NumbersOutOfRange) {
  const auto run = run_on(data("good"));
  for (const char* ranks : {"0", "1025", "99999", "4294967297"}) {
    expect_refusal(with(run, {"--ranks", ranks}), {"--ranks", "1024"});
  }
  expect_refusal_at_any_world_size(with(run, {"--epochs", "4611686018427387904"}), {"--epochs"});
  expect_refusal_at_any_world_size(with(run, {"--seed", "18446744073709551616"}), {"--seed", "2^64"});
  expect_refusal_at_any_world_size(with(run, {"--batch-size", "10000000000"}), {"--batch-size"});
  expect_refusal_at_any_world_size(with(run, {"--clip-norm", "1e-50"}), {"--clip-norm", "f32"});
  expect_refusal_at_any_world_size(with(run, {"--lr", "1e39"}), {"--lr", "f32"});
  expect_refusal_at_any_world_size(run_on("synthetic:99999999x99999999x1"), {"99999999"});
}

TEST_F(BadInput, MetricsThatCannotBeWritten) {
  for (const char* ranks : {"1", "2"}) {
    const ProcessResult result =
        train(with(run_on(data("good")), {"--metrics", "/dev/full", "--ranks", ranks}));
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(count_lines(result.err), 1u) << result.err;
    EXPECT_NE(result.err.find("/dev/full"), std::string::npos) << result.err;
  }
}

TEST_F(BadInput, CheckpointDirectoryThatCannotBeWritten) {
  // A folder below a file cannot be made, not even by root.
  const std::string impossible = inputs_ / "good/train-images-idx3-ubyte/run";
  for (const char* ranks : {"1", "2"}) {
    expect_refusal(with(run_on(data("good")), {"--checkpoint-dir", impossible, "--ranks", ranks}),
                   {impossible});
  }
}

TEST_F(BadInput, CheckpointsOfAnotherRun) {
  const auto run = run_on(data("good"));
  ASSERT_EQ(train(with(run, {"--checkpoint-dir", inputs_ / "run"})).status, 0);
  const std::string file = inputs_ / "run/step-000000005.h5";
  const auto refuse = [&](const std::vector<std::string>& options, const std::vector<std::string>& parts) {
    expect_refusal_at_any_world_size(with({"--device", "cpu", "--resume", file}, options), parts);
  };
  refuse({"--model", "flatten linear(10)"}, {"mlp", "flatten linear(10)"});
  refuse({"--batch-size", "16"}, {"--batch-size 8"});
  refuse({"--micro-batches", "2"}, {"--micro-batches 1"});
  refuse({"--seed", "2"}, {"--seed 1"});
  refuse({"--optimizer", "adamw"}, {"--optimizer sgd"});
  refuse({"--data", "synthetic:8x8x1,samples=99"}, {"99", "40"});
  refuse({"--data", "synthetic:9x8x1,samples=40"}, {"9x8x1", "8x8x1"});
  // Made with one micro-batch, so two ranks do not fit.
  expect_refusal({"--device", "cpu", "--resume", file, "--ranks", "2", "--epochs", "2"}, {"2"});

  expect_refusal_at_any_world_size(with(run, {"--resume", inputs_ / "none.h5"}), {"none.h5"});
  std::filesystem::resize_file(file, 2000);
  expect_refusal_at_any_world_size(with(run, {"--resume", file}), {file});
  expect_refusal_at_any_world_size(with(run, {"--resume", inputs_ / "good/train-images-idx3-ubyte"}),
                                   {"train-images-idx3-ubyte"});
}

TEST_F(BadInput, LossThatIsNotFinite) {
  // A rate so large that the second step's activations overflow.
  for (const char* ranks : {"1", "2"}) {
    const TemporaryDirectory folder;
    const ProcessResult result =
        train(with(run_on(data("good")), {"--lr", "1e30", "--ranks", ranks, "--checkpoint-dir", "run"}),
              folder.path());
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(count_lines(result.err), 1u) << result.err;
    EXPECT_NE(result.err.find("step 2: the loss is "), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("linear"), std::string::npos) << result.err;
    EXPECT_EQ(list_files(folder.path()), std::vector<std::string>{"run"}) << "nothing is saved";
  }
}

}  // namespace
}  // namespace annulus
