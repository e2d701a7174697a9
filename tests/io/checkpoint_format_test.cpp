// The file itself: what other programs see, and what earlier versions wrote.
#include <gtest/gtest.h>

#include <cstdlib>

#include "io/checkpoint.h"
#include "tests/support/checkpoint_samples.h"
#include "tests/support/temporary_directory.h"

namespace annulus {
namespace {

using test::Destinations;
using test::SampleTensors;
using test::TemporaryDirectory;

TEST(CheckpointFormat, IsReadByPlainH5py) {
  if (std::system("/usr/bin/python3 -c 'import h5py' 2>/dev/null") != 0)
    GTEST_SKIP() << "/usr/bin/python3 has no h5py; install python3-h5py";
  const TemporaryDirectory directory;
  const std::string path = directory / "file.h5";
  write_checkpoint(path, SampleTensors().tensors(), SampleTensors::attributes());
  const std::string command =
      "/usr/bin/python3 " ANNULUS_SOURCE_DIR "/tests/support/read_with_h5py.py " + path;
  EXPECT_EQ(std::system(command.c_str()), 0);
}

// Written by write_checkpoint of the first version that had the format, from the tensors of SampleTensors as
// they were then. Files in the wild look like this one: it must stay readable, whatever else changes.
TEST(CheckpointFormat, ReadsTheFilesOfVersion1) {
  const CheckpointReader reader(ANNULUS_TEST_DATA "/checkpoint-v1.h5");
  reader.verify();
  EXPECT_EQ(reader.format_version(), 1);
  EXPECT_EQ(reader.engine_version(), "0.1.0");
  EXPECT_EQ(reader.attributes(), SampleTensors::attributes());
  const SampleTensors sample;
  ASSERT_EQ(reader.tensors().size(), sample.tensors().size());
  Destinations destinations(sample.tensors());
  reader.load(destinations.tensors());
  EXPECT_TRUE(destinations.equal(sample.tensors()));
  const TensorRecord* state = reader.find("0.weight.momentum");
  EXPECT_EQ(state->of, "0.weight");
  EXPECT_EQ(state->role, TensorRole::optimizer_state);
  EXPECT_EQ(state->device, "cuda:1");
  EXPECT_EQ(state->provenance, (Provenance{"host-1", "Some GPU", "GPU-1234", 3}));
}

}  // namespace
}  // namespace annulus
