// annulus-train as a user runs it: what it prints, writes and computes.
#include <gtest/gtest.h>

#include <array>

#include "tests/support/train_program.h"

namespace annulus {
namespace {

using namespace test;

TEST(AnnulusTrain, AnswersHelpAndVersion) {
  const ProcessResult help = train({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.out.find("--micro-batches"), std::string::npos);
  const ProcessResult version = train({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_NE(version.out.find("devices: cpu"), std::string::npos);
}

TEST(AnnulusTrain, TrainsSavesAndReports) {
  const TemporaryDirectory folder;
  const ProcessResult result = train(
      with(kSmallRun, {"--ranks", "2", "--checkpoint-dir", "run", "--keep", "2", "--metrics", "m.jsonl"}),
      folder.path());
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_NE(result.out.find("epoch 4/4"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("test accuracy"), std::string::npos);
  EXPECT_EQ(result.out.find('\r'), std::string::npos) << "a progress bar is for terminals";

  // 200 samples in batches of 32: six full steps and one of 8 samples.
  const auto steps = read_metrics(folder / "m.jsonl", "step");
  ASSERT_EQ(steps.size(), 28u);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].at("step"), i + 1);
    EXPECT_EQ(steps[i].at("epoch"), i / 7);
    EXPECT_EQ(steps[i].at("samples"), i % 7 == 6 ? 8 : 32);
    EXPECT_GT(steps[i].at("samples_per_second"), 0.0);
    double parts = 0;
    for (const char* part : {"input", "forward", "backward", "communication", "update"}) {
      EXPECT_GE(steps[i].at(part), 0.0);
      parts += steps[i].at(part).get<double>();
    }
    EXPECT_LE(parts, steps[i].at("seconds").get<double>() * 1.01 + 1e-5);
  }
  EXPECT_LT(steps.back().at("loss"), steps.front().at("loss"));
  EXPECT_EQ(read_metrics(folder / "m.jsonl", "evaluation").size(), 4u);
  const auto end = read_metrics(folder / "m.jsonl", "end").at(0);
  EXPECT_EQ(end.at("step"), 28);
  EXPECT_EQ(end.at("checkpoint"), "run/step-000000028.h5");

  std::vector<std::string> files = list_files(folder / "run");
  std::sort(files.begin(), files.end());
  EXPECT_EQ(files,
            (std::vector<std::string>{"config.json", "latest", "step-000000021.h5", "step-000000028.h5"}));
}

TEST(AnnulusTrain, TheConfigItWritesReproducesTheRun) {
  const TemporaryDirectory folder;
  const auto options =
      with(kSmallRun, {"--ranks", "2", "--seed", "5", "--optimizer", "adamw", "--lr", "0.003", "--schedule",
                       "cosine", "--warmup-steps", "3", "--clip-norm", "0.5", "--label-smoothing", "0.1",
                       "--augment", "crop-flip", "--drop-last"});
  ASSERT_EQ(train(with(options, {"--checkpoint-dir", "a"}), folder.path()).status, 0);
  const ProcessResult again = train({"--config", "a/config.json", "--checkpoint-dir", "b"}, folder.path());
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(checksums(folder / "a/step-000000024.h5"), checksums(folder / "b/step-000000024.h5"));
}

TEST(AnnulusTrain, EvaluatesEverySampleOnceAtAnyWorldSize) {
  const TemporaryDirectory folder;
  // A fifth of them for the test: 103, which neither 2 nor 3 divides.
  const std::vector<std::string> run = {"--model",  "mlp", "--data",           "synthetic:6x6x1,samples=515",
                                        "--device", "cpu", "--batch-size",     "12",
                                        "--epochs", "1",   "--checkpoint-dir", "run"};
  ASSERT_EQ(train(run, folder.path()).status, 0);
  std::vector<std::string> lines;
  for (const char* ranks : {"1", "2", "3"}) {
    const ProcessResult result = train(
        {"--eval-only", "--resume", "auto", "--checkpoint-dir", "run", "--device", "cpu", "--ranks", ranks},
        folder.path());
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_NE(result.out.find("of 103)"), std::string::npos) << result.out;
    lines.push_back(result.out.substr(result.out.find("test loss")));
  }
  EXPECT_EQ(lines[0], lines[1]);
  EXPECT_EQ(lines[0], lines[2]);
  EXPECT_EQ(list_files(folder / "run").size(), 3u) << "an evaluation writes nothing";
}

TEST(AnnulusTrain, RefusesToMixRunsInOneDirectory) {
  const TemporaryDirectory folder;
  const auto run = with(kSmallRun, {"--max-steps", "2", "--checkpoint-dir", "run"});
  ASSERT_EQ(train(run, folder.path()).status, 0);
  const ProcessResult second = train(run, folder.path());
  EXPECT_NE(second.status, 0);
  EXPECT_NE(second.err.find("--resume auto"), std::string::npos) << second.err;
}

TEST(AnnulusTrain, ResumeAutoStartsAfreshInAnEmptyDirectoryAndEndsWhenAllIsDone) {
  const TemporaryDirectory folder;
  const auto run = with(kSmallRun, {"--epochs", "1", "--checkpoint-dir", "run", "--resume", "auto"});
  const ProcessResult first = train(run, folder.path());
  ASSERT_EQ(first.status, 0) << first.err;
  EXPECT_NE(first.out.find("afresh"), std::string::npos) << first.out;
  const ProcessResult second =
      train({"--checkpoint-dir", "run", "--resume", "auto", "--device", "cpu"}, folder.path());
  ASSERT_EQ(second.status, 0) << second.err;
  EXPECT_NE(second.out.find("nothing left to train"), std::string::npos) << second.out;
}

TEST(AnnulusTrain, SkipsADamagedCheckpointAndSaysSo) {
  const TemporaryDirectory folder;
  ASSERT_EQ(train(with(kSmallRun, {"--max-steps", "4", "--save-every", "2", "--checkpoint-dir", "run"}),
                  folder.path())
                .status,
            0);
  std::filesystem::resize_file(folder / "run/step-000000004.h5", 3000);
  const ProcessResult resumed =
      train({"--checkpoint-dir", "run", "--resume", "auto", "--device", "cpu"}, folder.path());
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_NE(resumed.out.find("skipped"), std::string::npos) << resumed.out;
  EXPECT_NE(resumed.out.find("step-000000002.h5, after step 2"), std::string::npos) << resumed.out;
}

TEST(AnnulusTrain, MetricsGoOnAfterALineThatWasCutOff) {
  const TemporaryDirectory folder;
  const std::string metrics = folder / "m.jsonl";
  const std::vector<std::string> more = {"--checkpoint-dir", "run", "--metrics", "m.jsonl"};
  ASSERT_EQ(train(with(with(kSmallRun, {"--epochs", "1"}), more), folder.path()).status, 0);
  std::filesystem::resize_file(metrics, std::filesystem::file_size(metrics) - 5);
  ASSERT_EQ(
      train(with(with({"--resume", "auto", "--epochs", "2", "--device", "cpu"}, more), {}), folder.path())
          .status,
      0);
  std::ifstream file(metrics);
  std::size_t broken = 0;
  for (std::string line; std::getline(file, line);) broken += !nlohmann::json::accept(line);
  EXPECT_EQ(broken, 1u) << "the line that was cut off, and no other";
}

TEST(AnnulusTrain, DoesNotStartAfreshOverCheckpointsThatAreAllDamaged) {
  const TemporaryDirectory folder;
  ASSERT_EQ(train(with(kSmallRun, {"--max-steps", "2", "--checkpoint-dir", "run"}), folder.path()).status, 0);
  const std::string file = folder / "run/step-000000002.h5";
  std::filesystem::resize_file(file, 3000);
  for (const char* ranks : {"1", "2"}) {
    const ProcessResult result = train(
        with(kSmallRun, {"--checkpoint-dir", "run", "--resume", "auto", "--ranks", ranks}), folder.path());
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(count_lines(result.err), 1u) << result.err;
    EXPECT_NE(result.err.find("step-000000002.h5"), std::string::npos) << result.err;
    EXPECT_EQ(std::filesystem::file_size(file), 3000u);
  }
}

TEST(AnnulusTrain, FallsBackToTheCpuWithoutCuda) {
  // No device is visible, whether or not this machine has one.
  const ProcessResult result =
      run_program(train_command({"--model", "mlp", "--data", "synthetic:4x4x1,samples=64", "--max-steps", "1",
                                 "--device", "auto"}),
                  {{"CUDA_VISIBLE_DEVICES", ""}});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("training on the CPU: "), std::string::npos) << result.out;
  const ProcessResult refused = run_program(
      train_command({"--model", "mlp", "--data", "synthetic:4x4x1,samples=64", "--device", "cuda"}),
      {{"CUDA_VISIBLE_DEVICES", ""}});
  EXPECT_NE(refused.status, 0);
  EXPECT_EQ(count_lines(refused.err), 1u) << refused.err;
}

/// Two ranks as torchrun would start them, with options of their own.
std::array<ProcessResult, 2> run_as_torchrun(const std::array<std::vector<std::string>, 2>& options,
                                             const std::string& folder) {
  auto environment = without_launcher();
  environment["WORLD_SIZE"] = environment["LOCAL_WORLD_SIZE"] = "2";
  environment["MASTER_ADDR"] = "127.0.0.1";
  environment["MASTER_PORT"] = std::to_string(20000 + getpid() % 20000);
  environment["RANK"] = environment["LOCAL_RANK"] = "0";
  Process first(train_command(options[0]), environment, folder);
  environment["RANK"] = environment["LOCAL_RANK"] = "1";
  Process second(train_command(options[1]), environment, folder);
  ProcessResult result = first.wait();
  return {std::move(result), second.wait()};
}

TEST(AnnulusTrain, TakesItsRanksFromTorchrunsVariables) {
  const TemporaryDirectory folder;
  const auto options = with(kSmallRun, {"--max-steps", "2", "--metrics", "m.jsonl"});
  const auto results = run_as_torchrun({options, options}, folder.path());
  EXPECT_EQ(results[0].status, 0) << results[0].err;
  EXPECT_EQ(results[1].status, 0) << results[1].err;
  EXPECT_EQ(results[1].out, "") << "only rank 0 speaks";
  EXPECT_EQ(read_metrics(folder / "m.jsonl", "start").at(0).at("world_size"), 2);
}

TEST(AnnulusTrain, RanksWithOtherOptionsAreFoundOutOnce) {
  const TemporaryDirectory folder;
  const auto results = run_as_torchrun({kSmallRun, with(kSmallRun, {"--seed", "2"})}, folder.path());
  EXPECT_EQ(results[0].status, 1);
  EXPECT_EQ(results[1].status, 1);
  EXPECT_EQ(results[0].err, "");
  EXPECT_EQ(results[1].err,
            "annulus-train: rank 1: all ranks need the same options, but --seed is 2 here and 1 on rank 0\n");
}

TEST(AnnulusTrain, AFullDiskEndsTheRunOnceAndLeavesNoHalfFile) {
  // A limit on the size of files stands in for the disk: the checkpoint needs 6.4 MB (weights and two
  // moments), and the memory that ranks share, which counts too, 5.4 MB.
  const std::vector<std::string> limited = {"bash", "-c", "ulimit -f 6000; exec \"$0\" \"$@\""};
  for (const char* ranks : {"1", "2"}) {
    const TemporaryDirectory folder;
    auto command =
        train_command({"--model", "mlp", "--data", "synthetic:28x28x1", "--device", "cpu", "--optimizer",
                       "adamw", "--max-steps", "1", "--checkpoint-dir", "run", "--ranks", ranks});
    command.insert(command.begin(), limited.begin(), limited.end());
    const ProcessResult result = run_program(command, without_launcher(), folder.path());
    EXPECT_EQ(result.status, 1) << result.out;
    EXPECT_EQ(count_lines(result.err), 1u) << result.err;
    EXPECT_NE(result.err.find("step-000000001"), std::string::npos) << result.err;
    EXPECT_EQ(list_files(folder / "run"), std::vector<std::string>{"config.json"});
  }
}

}  // namespace
}  // namespace annulus
