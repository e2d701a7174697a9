// annulus-checkpoint as a user runs it.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "io/checkpoint_directory.h"
#include "tests/support/checkpoint_samples.h"
#include "tests/support/temporary_directory.h"

namespace annulus {
namespace {

using test::SampleTensors;
using test::TemporaryDirectory;

struct Result {
  int status = -1;
  std::string out, error;
};

class AnnulusCheckpoint : public testing::Test {
 protected:
  Result run(const std::string& arguments) const {
    const std::string errors = directory_ / "stderr";
    const std::string command = ANNULUS_BINARY_DIR "/tools/annulus-checkpoint " + arguments + " 2>" + errors;
    FILE* pipe = popen(command.c_str(), "r");
    Result result;
    std::array<char, 4096> buffer;
    for (std::size_t got = 0; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
      result.out.append(buffer.data(), got);
    result.status = WEXITSTATUS(pclose(pipe));
    std::ifstream file(errors);
    result.error.assign(std::istreambuf_iterator<char>(file), {});
    return result;
  }

  std::string write(const std::string& name, const std::vector<TensorToSave>& tensors,
                    const Attributes& attributes = SampleTensors::attributes()) const {
    const std::string path = directory_ / name;
    write_checkpoint(path, tensors, attributes);
    return path;
  }

  static void expect_has(const std::string& text, std::initializer_list<const char*> parts) {
    for (const char* part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text;
  }

  static void expect_one_line(const std::string& text) {
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  }

  TemporaryDirectory directory_;
  SampleTensors sample_;
};

TEST_F(AnnulusCheckpoint, InspectShowsEverythingWithoutADevice) {
  const Result result = run("inspect " + write("a.h5", sample_.tensors()));
  EXPECT_EQ(result.status, 0) << result.error;
  EXPECT_EQ(result.error, "");
  expect_has(result.out,
             {"format 1", "step = 1234", "model = \"flatten linear(2)\"", "loss_scale = 0.1",
              "model: 13 tensors", "optimizer: 1 tensor,", "optimizer_state of 0.weight", "bf16", "[40, 500]",
              "80.0 KB", "cuda:1, written on host-1 by rank 3, Some GPU, GPU-1234: 7 tensors"});
}

TEST_F(AnnulusCheckpoint, InspectPrintsJson) {
  const std::string path = write("a.h5", sample_.tensors());
  const Result result = run("inspect --json " + path);
  EXPECT_EQ(result.status, 0) << result.error;
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["path"], path);
  EXPECT_EQ(json["format_version"], 1);
  EXPECT_EQ(json["attributes"]["step"], 1234);
  ASSERT_EQ(json["tensors"].size(), sample_.tensors().size());
  EXPECT_EQ(json["tensors"][3]["of"], "0.weight");
  EXPECT_EQ(json["tensors"][3]["device"], "cuda:1");
  EXPECT_EQ(json["tensors"][4]["shape"], nlohmann::json({40, 500}));
}

TEST_F(AnnulusCheckpoint, TakesADirectoryForItsNewestFile) {
  const CheckpointDirectory checkpoints(directory_.path());
  for (const std::int64_t step : {1, 2})
    checkpoints.publish(step, [&](const std::filesystem::path& path) {
      write_checkpoint(path, sample_.tensors(), {{"step", step}});
    });
  expect_has(run("inspect " + directory_.path().string()).out, {"step = 2"});
  checkpoints.commit_latest(1);
  expect_has(run("inspect " + directory_.path().string()).out, {"step = 1"});
}

TEST_F(AnnulusCheckpoint, VerifyTellsWholeFromDamaged) {
  const std::string good = write("good.h5", sample_.tensors()), bad = write("bad.h5", sample_.tensors());
  const auto offset = static_cast<std::streamoff>(CheckpointReader(bad).find("large")->offset);
  std::fstream(bad, std::ios::in | std::ios::out).seekp(offset + 9).put('x');
  const Result whole = run("verify " + good);
  EXPECT_EQ(whole.status, 0);
  expect_has(whole.out, {"good.h5: whole, 14 tensors"});
  const Result both = run("verify " + bad + " " + good);
  EXPECT_EQ(both.status, 1);
  expect_has(both.out, {"good.h5: whole"});
  expect_has(both.error, {"bad.h5", "\"large\"", "checksum"});
  expect_one_line(both.error);
}

TEST_F(AnnulusCheckpoint, DiffSaysHowFarApart) {
  const std::string a = write("a.h5", sample_.tensors()), same = write("same.h5", sample_.tensors());
  const Result equal = run("diff " + a + " " + same);
  EXPECT_EQ(equal.status, 0) << equal.out << equal.error;
  expect_has(equal.out, {"large: equal", "empty: equal"});

  SampleTensors other;
  other.tensors()[0].data.as<float>()[5] += 0.5f;
  std::vector<TensorToSave> tensors = other.tensors();
  tensors[1].record.name = "0.offset";
  tensors[4].record.shape = {500, 40};
  Attributes attributes = SampleTensors::attributes();
  attributes["step"] = std::int64_t{1235};
  attributes.erase("epoch");
  const Result result = run("diff " + a + " " + write("b.h5", tensors, attributes));
  EXPECT_EQ(result.status, 1);
  expect_has(result.out,
             {"0.weight: 1 of 24 elements differ, by at most 0.5 absolute", "0.bias: only in A",
              "0.offset: only in B", "large: parameter f32 [40, 500] in A, parameter f32 [500, 40] in B",
              "training step: 1234 in A, 1235 in B", "training epoch: 7 in A, nothing in B", "brain: equal"});
}

TEST_F(AnnulusCheckpoint, DiffUnderstandsEveryDtype) {
  const std::string a = write("a.h5", sample_.tensors());
  const std::string b = write("b.h5", SampleTensors(2).tensors());
  const Result result = run("diff " + a + " " + b);
  EXPECT_EQ(result.status, 1);
  // Elements of the second are larger by one, and halves by one unit in the last place above 1.
  expect_has(result.out,
             {"0.weight: 24 of 24 elements differ, by at most 1 absolute",
              "scalar: 1 of 1 elements differ, by at most 1 absolute", "brain: 8 of 8 elements differ",
              "half: 3 of 3 elements differ, by at most 0.000976562 absolute",
              "counts: 3 of 3 elements differ, by at most 1 absolute",
              "long counts: 2 of 2 elements differ, by at most 1 absolute",
              "bytes: 7 of 7 elements differ, by at most 1 absolute"});
}

TEST_F(AnnulusCheckpoint, RefusesBadInputInOneLine) {
  std::ofstream(directory_ / "notes.txt") << "hello";
  std::filesystem::create_directory(directory_ / "empty");
  const std::string missing = directory_ / "missing.h5";
  for (const std::string& arguments :
       {"inspect " + missing, "diff " + missing + " " + missing, "inspect " + (directory_ / "notes.txt"),
        "inspect " + (directory_ / "empty"), std::string("inspect"), std::string("explode x"), std::string(),
        std::string("inspect --jsonx x"), std::string("diff one")}) {
    const Result result = run(arguments);
    EXPECT_EQ(result.status, 2) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
    expect_one_line(result.error);
  }
  EXPECT_EQ(run("verify " + missing).status, 1);
  expect_has(run("inspct x").error, {"unknown command \"inspct\"", "did you mean \"inspect\"?"});
  expect_has(run("--help").out, {"inspect", "verify", "diff", "remap", "convert"});
}

}  // namespace
}  // namespace annulus
