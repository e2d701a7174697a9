#include "io/dataset_spec.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/idx_files.h"
#include "tests/support/temporary_directory.h"

namespace annulus {
namespace {

using test::expect_error;

using Options = std::map<std::string, std::string>;

TEST(DatasetSpec, TakesSpecsApart) {
  struct Expected {
    const char* text;
    DatasetKind kind;
    const char* location;
    Options options;
  };
  for (const auto& [text, kind, location, options] : {
           Expected{"fashion-mnist", DatasetKind::fashion_mnist, "", {}},
           Expected{"idx:/data/mnist", DatasetKind::idx, "/data/mnist", {}},
           Expected{"idx:rel,classes=47", DatasetKind::idx, "rel", {{"classes", "47"}}},
           Expected{"idx:/a,b/c=d,e", DatasetKind::idx, "/a,b/c=d,e", {}},
           Expected{"cifar10:dir", DatasetKind::cifar10, "dir", {}},
           Expected{"hdf5:a.h5,test=b,c.h5,classes=3",
                    DatasetKind::hdf5,
                    "a.h5",
                    {{"test", "b,c.h5"}, {"classes", "3"}}},
           Expected{"synthetic:1x2x3,samples=5,seed=6,classes=7",
                    DatasetKind::synthetic,
                    "1x2x3",
                    {{"samples", "5"}, {"seed", "6"}, {"classes", "7"}}},
       }) {
    const DatasetSpec spec = parse_dataset_spec(text);
    EXPECT_EQ(spec.text, text);
    EXPECT_EQ(spec.kind, kind) << text;
    EXPECT_EQ(spec.location, location) << text;
    EXPECT_EQ(spec.options, options) << text;
  }
}

TEST(DatasetSpec, SuggestsTheNearest) {
  const auto parse = [](const char* text) { return [text] { (void)parse_dataset_spec(text); }; };
  expect_error<ConfigError>(parse("fashion_mnist"),
                            {"\"fashion_mnist\" is unknown", "did you mean \"fashion-mnist\""});
  expect_error<ConfigError>(parse("sinthetic:1x1x1"), {"did you mean \"synthetic\""});
  expect_error<ConfigError>(parse("imagenet"), {"\"imagenet\" is unknown; write fashion-mnist, idx:DIR",
                                                "cifar10:DIR", "hdf5:FILE", "synthetic:HxWxC", "path"});
  expect_error<ConfigError>(parse(""), {"is unknown", "write fashion-mnist"});
  expect_error<ConfigError>(parse("synthetic:1x1x1,sample=3"),
                            {"no option \"sample\"", "did you mean \"samples\""});
  expect_error<ConfigError>(parse("cifar10:dir,classes=10"), {"no option \"classes\""});
  expect_error<ConfigError>(parse("idx:dir,classes=1,classes=2"), {"\"classes\" is given twice"});
  expect_error<ConfigError>(parse("idx"), {"\"idx\" must be followed by a colon and a location"});
  expect_error<ConfigError>(parse("hdf5:"), {"\"hdf5\" must be followed"});
  expect_error<ConfigError>(parse("fashion-mnist:dir"), {"\"fashion-mnist\" stands alone"});
}

TEST(DatasetSpec, ReadsNumbersWithinLimits) {
  const DatasetSpec spec = parse_dataset_spec("synthetic:1x1x1,samples=5,seed=x,classes=0");
  EXPECT_EQ(spec.number("samples", {1, 5}), 5u);
  EXPECT_EQ(spec.number("absent", {}), std::nullopt);
  expect_error<ConfigError>(
      [&] {
        (void)spec.number("samples", {1, 4});
      },
      {"samples", "from 1 to 4", "\"5\""});
  expect_error<ConfigError>(
      [&] {
        (void)spec.number("classes", {1, 4});
      },
      {"classes", "from 1 to 4", "\"0\""});
  expect_error<ConfigError>([&] { (void)spec.number("seed", {}); }, {"seed", "\"x\""});
  EXPECT_EQ(parse_number("18446744073709551615"), 18446744073709551615u);
  for (const char* text : {"", "-1", "+1", "1.0", " 1", "1 ", "18446744073709551616"})
    EXPECT_EQ(parse_number(text), std::nullopt) << text;
}

TEST(DatasetSpec, RecognisesPathsByWhatIsInThem) {
  const test::TemporaryDirectory directory;
  const auto kind_of = [&](const std::string& path) { return parse_dataset_spec(path).kind; };
  for (const char* suffix : {"", ".gz"}) {
    const std::string folder = directory / (std::string("idx") + suffix);
    test::write_idx_dataset(folder, 2, 2, 2, 2, suffix);
    EXPECT_EQ(kind_of(folder), DatasetKind::idx);
    EXPECT_EQ(parse_dataset_spec(folder).location, folder);
  }
  std::filesystem::create_directory(directory / "cifar");
  test::write_bytes(directory / "cifar/data_batch_1.bin", {});
  EXPECT_EQ(kind_of(directory / "cifar"), DatasetKind::cifar10);
  test::write_bytes(directory / "data", {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n', 0});
  EXPECT_EQ(kind_of(directory / "data"), DatasetKind::hdf5);

  const auto parse = [](const std::string& text) { return [text] { (void)parse_dataset_spec(text); }; };
  std::filesystem::create_directory(directory / "empty");
  expect_error<DataError>(parse(directory / "empty"),
                          {directory / "empty", "train-images-idx3-ubyte", "data_batch_1"});
  expect_error<DataError>(parse(directory / "nothing"), {directory / "nothing", "no such file or folder"});
  test::write_bytes(directory / "text", {'x'});
  expect_error<DataError>(parse(directory / "text"), {directory / "text", "not an HDF5 file"});
}

}  // namespace
}  // namespace annulus
