#include "io/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "core/base/error.h"
#include "tests/support/checkpoint_samples.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace annulus {
namespace {

using test::Destinations;
using test::expect_error;
using test::SampleTensors;
using test::TemporaryDirectory;

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void put(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override { write_checkpoint(path_, sample_.tensors(), SampleTensors::attributes()); }

  // Where an element's byte is in the file.
  std::uint64_t place_of(const std::string& name) const { return CheckpointReader(path_).find(name)->offset; }

  void flip(std::uint64_t offset) {
    std::string bytes = contents(path_);
    bytes[offset] = static_cast<char>(bytes[offset] ^ 0x10);
    put(path_, bytes);
  }

  TemporaryDirectory directory_;
  std::string path_ = directory_ / "file.h5";
  SampleTensors sample_;
};

TEST_F(CheckpointTest, ReadsBackWhatWasWritten) {
  const CheckpointReader reader(path_);
  EXPECT_EQ(reader.format_version(), 1);
  EXPECT_FALSE(reader.engine_version().empty());
  EXPECT_EQ(reader.attributes(), SampleTensors::attributes());
  ASSERT_EQ(reader.tensors().size(), sample_.tensors().size());
  for (std::size_t i = 0; i < sample_.tensors().size(); ++i) {
    const TensorRecord& expected = sample_.tensors()[i].record;
    const TensorRecord& found = reader.tensors()[i];
    EXPECT_EQ(found.name, expected.name);
    EXPECT_EQ(found.role, expected.role);
    EXPECT_EQ(found.of, expected.of);
    EXPECT_EQ(found.dtype, expected.dtype);
    EXPECT_EQ(found.shape, expected.shape);
    EXPECT_EQ(found.device, expected.device);
    EXPECT_EQ(found.provenance, expected.provenance);
    EXPECT_EQ(reader.find(expected.name), &found);
  }
  EXPECT_EQ(reader.find("1.weight"), nullptr);
  reader.verify();
  Destinations destinations(sample_.tensors());
  reader.load(destinations.tensors());
  EXPECT_TRUE(destinations.equal(sample_.tensors()));
}

TEST_F(CheckpointTest, GivesAttributesByType) {
  const CheckpointReader reader(path_);
  EXPECT_EQ(reader.integer("step"), 1234);
  EXPECT_EQ(reader.number("loss_scale"), 0.1);
  EXPECT_EQ(reader.text("model"), "flatten linear(2)");
  expect_error<CheckpointError>([&] { (void)reader.integer("cursor"); }, {path_, "\"cursor\""});
  expect_error<CheckpointError>([&] { (void)reader.integer("model"); }, {"\"model\"", "not a whole number"});
  expect_error<CheckpointError>([&] { (void)reader.number("step"); }, {"\"step\"", "floating-point"});
  expect_error<CheckpointError>([&] { (void)reader.text("step"); }, {"\"step\"", "not a text"});
}

TEST_F(CheckpointTest, WritesTheSameBytesForTheSameTensors) {
  const std::string again = directory_ / "again.h5";
  write_checkpoint(again, SampleTensors().tensors(), SampleTensors::attributes());
  EXPECT_EQ(contents(path_), contents(again));
}

TEST_F(CheckpointTest, AlignsLargeTensors) { EXPECT_EQ(place_of("large") % 4096, 0u); }

TEST_F(CheckpointTest, ReadsPartsOfATensor) {
  const CheckpointReader reader(path_);
  const TensorToSave& large = sample_.tensors()[4];
  std::vector<std::byte> part(1000);
  reader.read_bytes(*reader.find("large"), 400, part);
  EXPECT_EQ(std::memcmp(part.data(), static_cast<std::byte*>(large.data.data()) + 400, part.size()), 0);
  expect_error<CheckpointError>([&] { reader.read_bytes(*reader.find("large"), 79'500, part); },
                                {"\"large\""});
}

TEST_F(CheckpointTest, HoldsNothingToo) {
  const std::string path = directory_ / "nothing.h5";
  write_checkpoint(path, {}, {});
  const CheckpointReader reader(path);
  reader.verify();
  EXPECT_TRUE(reader.tensors().empty());
  EXPECT_TRUE(reader.attributes().empty());
}

TEST_F(CheckpointTest, StaysReadableWhenItsNameIsGone) {
  const CheckpointReader reader(path_);
  std::filesystem::remove(path_);
  reader.verify();
  Destinations destinations(sample_.tensors());
  reader.load(destinations.tensors());
  EXPECT_TRUE(destinations.equal(sample_.tensors()));
}

TEST_F(CheckpointTest, RefusesRecordsThatAreNoCheckpoint) {
  const std::string path = directory_ / "bad.h5";
  float element = 0;
  const auto refuse = [&](std::initializer_list<std::string_view> parts, auto change) {
    std::vector<TensorToSave> tensors;
    for (const char* name : {"w", "b"})
      tensors.push_back(tensor_to_save(name, TensorRole::parameter, Tensor(&element, Shape{1}), {}));
    tensors.push_back(
        tensor_to_save("w.momentum", TensorRole::optimizer_state, Tensor(&element, Shape{1}), {}, "w"));
    Attributes attributes;
    change(tensors, attributes);
    expect_error<CheckpointError>([&] { write_checkpoint(path, tensors, attributes); }, parts);
    EXPECT_FALSE(std::filesystem::exists(path));
  };
  refuse({"\"w\"", "twice"}, [](auto& tensors, auto&) { tensors[1].record.name = "w"; });
  refuse({"1 to 1024 bytes"}, [](auto& tensors, auto&) { tensors[1].record.name = ""; });
  refuse({"control characters"},
         [](auto& tensors, auto&) { tensors[1].record.name = std::string("a\0b", 3); });
  refuse({"1024"}, [](auto& tensors, auto&) { tensors[1].record.name = std::string(1025, 'a'); });
  refuse({"UTF-8"}, [](auto& tensors, auto&) { tensors[1].record.name = "\xFF"; });
  refuse({"\"w.momentum\"", "\"v\""}, [](auto& tensors, auto&) { tensors[2].record.of = "v"; });
  refuse({"\"b\"", "only optimizer state"}, [](auto& tensors, auto&) { tensors[1].record.of = "w"; });
  refuse({"\"b\"", "cuda"}, [](auto& tensors, auto&) { tensors[1].record.device = "cuda"; });
  refuse({"\"b\"", "cuda:01"}, [](auto& tensors, auto&) { tensors[1].record.device = "cuda:01"; });
  refuse({"\"b\"", "9 dimensions"}, [](auto& tensors, auto&) { tensors[1].record.shape.assign(9, 1); });
  refuse({"\"b\"", "8 bytes of f32", "4 of f32"},
         [](auto& tensors, auto&) { tensors[1].record.shape = {2}; });
  refuse({"\"b\"", "4 bytes of i32"}, [](auto& tensors, auto&) { tensors[1].record.dtype = DType::i32; });
  refuse({"\"b\"", "multiply"}, [](auto& tensors, auto&) {
    tensors[1].record.shape = {1ull << 40, 1ull << 40};
  });
  refuse({"\"loss\"", "finite"}, [](auto&, auto& attributes) { attributes["loss"] = std::nan(""); });
  refuse({"\"text\"", "32768"},
         [](auto&, auto& attributes) { attributes["text"] = std::string(40000, 'a'); });
  refuse({"UTF-8"}, [](auto&, auto& attributes) { attributes["text"] = std::string("\xC3"); });
  refuse({"attribute", "1024"}, [](auto&, auto& attributes) { attributes[""] = std::int64_t{1}; });
}

TEST_F(CheckpointTest, NeverOverwrites) {
  const std::string before = contents(path_);
  expect_error<FileError>([&] { write_checkpoint(path_, sample_.tensors(), {}); }, {path_, "exists"});
  EXPECT_EQ(contents(path_), before);
  expect_error<FileError>([&] { write_checkpoint(directory_ / "no/file.h5", sample_.tensors(), {}); },
                          {"no", "No such file"});
}

TEST_F(CheckpointTest, TouchesNoDeviceButTheStreams) {
  std::vector<TensorToSave> tensors = sample_.tensors();
  Tensor& data = tensors[1].data;
  data = Tensor(data.data(), data.shape(), data.dtype(), Device::cuda(1));
  expect_error<DeviceError>([&] { write_checkpoint(directory_ / "cuda.h5", tensors, {}); },
                            {"\"0.bias\"", "cuda:1", "cpu"});
  Destinations destinations(sample_.tensors());
  destinations.tensors()[1].destination = data;
  expect_error<DeviceError>([&] { CheckpointReader(path_).load(destinations.tensors()); },
                            {"\"0.bias\"", "cuda:1", "cpu"});
}

TEST_F(CheckpointTest, ChecksEverythingBeforeItLoadsAnything) {
  const CheckpointReader reader(path_);
  const auto refuse = [&](std::initializer_list<std::string_view> parts, auto change) {
    Destinations destinations(sample_.tensors());
    change(destinations.tensors());
    expect_error<CheckpointError>([&] { reader.load(destinations.tensors()); }, parts);
    EXPECT_TRUE(destinations.untouched());
  };
  refuse({path_, "\"0.scale\"", "another model"}, [](auto& tensors) { tensors.back().name = "0.scale"; });
  refuse({"\".\"", "[1]", "[1, 1]"}, [](auto& tensors) {
    Tensor& last = tensors.back().destination;
    last = last.reshaped(Shape{1, 1});
  });
  refuse({"\".\"", "f32", "i32"}, [](auto& tensors) {
    Tensor& last = tensors.back().destination;
    last = Tensor(last.data(), last.shape(), DType::i32);
  });
}

TEST_F(CheckpointTest, FindsAFlippedElement) {
  flip(place_of("a/b%2F.ü") + 5);
  const CheckpointReader reader(path_);
  expect_error<CheckpointError>([&] { reader.verify(); }, {path_, "\"a/b%2F.ü\"", "checksum"});
  Destinations destinations(sample_.tensors());
  expect_error<CheckpointError>([&] { reader.load(destinations.tensors()); }, {"\"a/b%2F.ü\"", "checksum"});
  EXPECT_TRUE(destinations.untouched());
}

// Elements, manifest, HDF5's structures and padding alike: an error, or nothing that matters has changed.
TEST_F(CheckpointTest, SurvivesAnyFlippedByte) {
  const std::string good = contents(path_);
  const std::uint64_t large = place_of("large");
  std::size_t found = 0;
  for (std::size_t at = 0; at < good.size(); at += at >= large && at < large + 80000 ? 6007 : 61) {
    std::string bad = good;
    bad[at] = static_cast<char>(~bad[at]);
    put(path_, bad);
    Destinations destinations(sample_.tensors());
    try {
      const CheckpointReader reader(path_);
      reader.load(destinations.tensors());
      EXPECT_TRUE(destinations.equal(sample_.tensors())) << "byte " << at;
      EXPECT_EQ(reader.attributes(), SampleTensors::attributes()) << "byte " << at;
    } catch (const Error&) {
      EXPECT_TRUE(destinations.untouched()) << "byte " << at;
      ++found;
    }
  }
  EXPECT_GT(found, 50u);
}

TEST_F(CheckpointTest, IsIncompleteAtAnyShorterLength) {
  const std::string good = contents(path_);
  for (std::size_t length = 0; length < good.size(); length += length < 4096 ? 97 : 4999) {
    put(path_, good.substr(0, length));
    expect_error<CheckpointError>([&] { (void)CheckpointReader(path_); }, {path_});
  }
  put(path_, good.substr(0, good.size() - 1));
  expect_error<CheckpointError>([&] { (void)CheckpointReader(path_); }, {path_});
}

// What some file systems leave after a crash: the right length, zeros instead of the tail.
TEST_F(CheckpointTest, IsIncompleteWhenItsTailIsZero) {
  const std::string good = contents(path_);
  for (std::size_t kept = 512; kept < good.size(); kept += 8191) {
    put(path_, good.substr(0, kept) + std::string(good.size() - kept, '\0'));
    expect_error<CheckpointError>([&] { CheckpointReader(path_).verify(); }, {path_});
  }
}

TEST_F(CheckpointTest, SaysWhenAFileIsNoCheckpoint) {
  put(path_, "step,loss\n1,2.3\n");
  expect_error<CheckpointError>([&] { (void)CheckpointReader(path_); }, {path_, "not an HDF5 file"});
  expect_error<FileError>([&] { (void)CheckpointReader(directory_ / "missing.h5"); },
                          {"missing.h5", "No such file"});
  expect_error<FileError>([&] { (void)CheckpointReader(directory_.path()); }, {"regular file"});
  expect_error<FileError>([&] { (void)CheckpointReader("/dev/null"); }, {"/dev/null", "regular file"});
}

TEST(Provenance, NamesTheHost) {
  const Provenance provenance = local_provenance(Device::cpu(), 2);
  EXPECT_FALSE(provenance.host.empty());
  EXPECT_TRUE(provenance.device_name.empty());
  EXPECT_EQ(provenance.rank, 2);
}

}  // namespace
}  // namespace annulus
