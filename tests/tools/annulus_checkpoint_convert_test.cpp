// annulus-checkpoint convert, as a user runs it; what it makes is read by NumPy.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "io/checkpoint.h"
#include "tests/support/checkpoint_samples.h"
#include "tests/support/process.h"
#include "tests/support/temporary_directory.h"

namespace annulus {
namespace {

const std::string kProgram = ANNULUS_BINARY_DIR "/tools/annulus-checkpoint";

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

class Convert : public testing::Test {
 protected:
  // All samples, or only those that NumPy has a dtype for.
  std::string write(const std::string& name, bool with_bf16) const {
    std::vector<TensorToSave> tensors = sample_.tensors();
    if (!with_bf16)
      std::erase_if(tensors, [](const auto& tensor) { return tensor.record.dtype == DType::bf16; });
    write_checkpoint(directory_ / name, tensors, {});
    return directory_ / name;
  }

  static test::ProcessResult convert(const std::string& in, const std::string& out) {
    return test::run_program({kProgram, "convert", in, out});
  }

  // Every tensor of the model with its dtype, shape and bytes, as read by Python.
  static void expect_same_bits(const std::string& in, const std::string& out) {
    if (std::system("/usr/bin/python3 -c 'import numpy' 2>/dev/null") != 0)
      GTEST_SKIP() << "/usr/bin/python3 has no numpy; install python3-numpy";
    const test::ProcessResult read = test::run_program(
        {"/usr/bin/python3", ANNULUS_SOURCE_DIR "/tests/support/read_exported_model.py", out});
    ASSERT_EQ(read.status, 0) << read.err;
    const nlohmann::json found = nlohmann::json::parse(read.out);
    std::size_t expected = 0;
    const CheckpointReader reader(in);
    for (const TensorRecord& record : reader.tensors()) {
      if (record.role == TensorRole::optimizer_state) continue;
      ++expected;
      ASSERT_TRUE(found.contains(record.name)) << record.name;
      std::string hex;
      std::vector<std::byte> bytes(record.bytes());
      reader.read_bytes(record, 0, bytes);
      for (const std::byte byte : bytes) hex += fmt::format("{:02x}", static_cast<unsigned>(byte));
      const nlohmann::json tensor = {
          {"dtype", name_of(record.dtype)}, {"shape", record.shape}, {"bytes", hex}};
      EXPECT_EQ(found[record.name], tensor) << record.name;
    }
    EXPECT_EQ(found.size(), expected);
  }

  test::TemporaryDirectory directory_;
  test::SampleTensors sample_;
};

TEST_F(Convert, SafetensorsHasTheSameBits) {
  const std::string in = write("in.h5", true), out = directory_ / "model.safetensors";
  ASSERT_EQ(convert(in, out).err, "");
  ASSERT_EQ(convert(in, directory_ / "again.safetensors").status, 0);
  EXPECT_EQ(contents(out), contents(directory_ / "again.safetensors"));
  expect_same_bits(in, out);
}

TEST_F(Convert, NpzHasTheSameBits) {
  const std::string in = write("in.h5", false), out = directory_ / "model.npz";
  ASSERT_EQ(convert(in, out).err, "");
  expect_same_bits(in, out);
}

TEST_F(Convert, RefusesInOneLineAndLeavesNothing) {
  const std::string in = write("in.h5", true), damaged = write("damaged.h5", true);
  const auto offset = static_cast<std::streamoff>(CheckpointReader(damaged).find("large")->offset);
  std::fstream(damaged, std::ios::in | std::ios::out).seekp(offset + 9).put('x');
  std::ofstream(directory_ / "notes.txt") << "hello";
  std::ofstream(directory_ / "old.npz") << "precious";
  const auto refused = [&](const std::string& from, const std::string& to, const std::string& why) {
    const test::ProcessResult result = convert(from, directory_ / to);
    EXPECT_EQ(result.status, 2) << to;
    EXPECT_NE(result.err.find(why), std::string::npos) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  };
  refused(in, "model.pt", "expected a name that ends in .safetensors or .npz");
  refused(in, "model.npz", "NumPy has no bf16");
  refused(in, "old.npz", "exists already");
  refused(damaged, "model.safetensors", "checksum");
  refused(directory_ / "notes.txt", "model.safetensors", "notes.txt");
  EXPECT_EQ(contents(directory_ / "old.npz"), "precious");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_.path()), {}), 4);
}

}  // namespace
}  // namespace annulus
