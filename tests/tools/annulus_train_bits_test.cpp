// Same seed and micro-batches, same bits: on any number of ranks, and whether or not the run was interrupted.
#include <gtest/gtest.h>

#include "tests/support/train_program.h"

namespace annulus {
namespace {

using namespace test;

// Batch norm, dropout, crops and a ragged last batch (212 = 4 * 48 + 20) all take part.
const std::vector<std::string> kRun = {
    "--model",         "conv2d(4,3,pad=1) batch_norm relu maxpool(2) flatten dropout(0.2) linear(10)",
    "--data",          "synthetic:8x8x1,samples=212",
    "--device",        "cpu",
    "--batch-size",    "48",
    "--micro-batches", "8",
    "--epochs",        "10",
    "--augment",       "crop-flip",
    "--schedule",      "cosine",
    "--clip-norm",     "1"};

std::map<std::string, std::uint32_t> bits_after_50_steps(const std::string& folder,
                                                         const std::vector<std::string>& options) {
  const ProcessResult result = train(options, folder);
  EXPECT_EQ(result.status, 0) << result.err;
  return checksums(folder + "/run/step-000000050.h5");
}

TEST(AnnulusTrainBits, AreTheSameOnOneTwoAndFourRanks) {
  for (const std::vector<std::string>& optimizer :
       {std::vector<std::string>{}, std::vector<std::string>{"--optimizer", "adamw", "--lr", "0.01"}}) {
    std::map<std::string, std::uint32_t> one;
    for (const char* ranks : {"1", "2", "4"}) {
      const TemporaryDirectory folder;
      const auto bits = bits_after_50_steps(
          folder.path(), with(with(kRun, optimizer), {"--checkpoint-dir", "run", "--ranks", ranks}));
      if (one.empty()) one = bits;
      EXPECT_EQ(bits, one) << ranks << " ranks";
    }
    EXPECT_GT(one.size(), 6u);
  }
}

TEST(AnnulusTrainBits, AreTheSameAfterAnInterruption) {
  const TemporaryDirectory whole;
  const auto expected =
      bits_after_50_steps(whole.path(), with(kRun, {"--checkpoint-dir", "run", "--ranks", "2"}));
  // Stopped in mid-epoch (an epoch has five steps), resumed twice, each time at another world size.
  const TemporaryDirectory parts;
  ASSERT_EQ(train(with(kRun, {"--checkpoint-dir", "run", "--ranks", "2", "--max-steps", "13"}), parts.path())
                .status,
            0);
  const ProcessResult second = train(
      {"--checkpoint-dir", "run", "--resume", "auto", "--ranks", "4", "--device", "cpu", "--max-steps", "31"},
      parts.path());
  ASSERT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(bits_after_50_steps(parts.path(), {"--checkpoint-dir", "run", "--resume", "auto", "--ranks", "1",
                                               "--device", "cpu"}),
            expected);
}

}  // namespace
}  // namespace annulus
