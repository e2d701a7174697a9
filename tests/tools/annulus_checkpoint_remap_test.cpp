// annulus-checkpoint remap, as a user runs it.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "io/checkpoint.h"
#include "tests/support/checkpoint_samples.h"
#include "tests/support/process.h"
#include "tests/support/temporary_directory.h"

namespace annulus {
namespace {

const std::string kProgram = ANNULUS_BINARY_DIR "/tools/annulus-checkpoint";

class Remap : public testing::Test {
 protected:
  Remap() { write_checkpoint(in_, sample_.tensors(), test::SampleTensors::attributes()); }

  test::ProcessResult remap(const std::string& in, const std::string& out, const std::string& map) const {
    return test::run_program({kProgram, "remap", in, out, "--map", map});
  }

  test::TemporaryDirectory directory_;
  test::SampleTensors sample_;
  const std::string in_ = directory_ / "in.h5", out_ = directory_ / "out.h5", back_ = directory_ / "back.h5";
};

TEST_F(Remap, ChangesTagsAndNothingElseAndComesBack) {
  EXPECT_EQ(remap(in_, out_, "cuda:1=cuda:77,*=saved").err, "");
  EXPECT_EQ(remap(out_, back_, "cuda:77=cuda:1,*=saved").err, "");
  const CheckpointReader in(in_), out(out_), back(back_);
  out.verify();
  EXPECT_EQ(out.attributes(), in.attributes());
  ASSERT_EQ(out.tensors().size(), in.tensors().size());
  for (std::size_t i = 0; i < in.tensors().size(); ++i) {
    const TensorRecord &was = in.tensors()[i], &is = out.tensors()[i];
    EXPECT_EQ(is.name, was.name);
    EXPECT_EQ(is.crc32c, was.crc32c) << was.name;
    EXPECT_EQ(is.shape, was.shape) << was.name;
    EXPECT_EQ(is.device, was.device == "cuda:1" ? "cuda:77" : was.device) << was.name;
    EXPECT_EQ(back.tensors()[i].device, was.device) << was.name;
  }
  EXPECT_EQ(test::run_program({kProgram, "diff", in_, back_}).status, 0);
}

TEST_F(Remap, RefusesInOneLineAndLeavesNothing) {
  const auto refused = [&](const std::string& in, const std::string& map, const std::string& why) {
    const test::ProcessResult result = remap(in, out_, map);
    EXPECT_EQ(result.status, 2) << map;
    EXPECT_NE(result.err.find(why), std::string::npos) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  };
  refused(in_, "cuda:9=cpu", "the tags in the checkpoint are ");
  refused(in_, "local", "there is no rank");
  refused(in_, "cuda:1=cuda,*=cpu", "there is no rank");
  refused(in_, "nonsense", "is not a place");
  std::filesystem::copy_file(in_, back_);
  const auto offset = static_cast<std::streamoff>(CheckpointReader(back_).find("large")->offset);
  std::fstream(back_, std::ios::in | std::ios::out).seekp(offset + 9).put('x');
  refused(back_, "cpu", "checksum");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_.path()), {}), 2);
  std::ofstream(out_) << "precious";
  refused(in_, "cpu", "exists already");
  EXPECT_EQ(std::filesystem::file_size(out_), 8u);
}

}  // namespace
}  // namespace annulus
