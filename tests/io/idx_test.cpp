#include "io/idx.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <fstream>

#include "core/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/idx_files.h"
#include "tests/support/temporary_directory.h"

namespace annulus {
namespace {

using test::Bytes;
using test::expect_error;
using test::idx_bytes;
using test::write_bytes;

Bytes read_whole_file(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(stream), {});
}

TEST(ReadIdx, ReadsPlainAndGzippedFiles) {
  const test::TemporaryDirectory directory;
  // Larger than the reader's first chunk, and not a multiple of anything.
  const Bytes pixels = test::idx_pixels(3 * 1009 * 997);
  for (const char* name : {"images", "images.gz"}) {
    write_bytes(directory / name, idx_bytes({3, 1009, 997}, pixels));
    const IdxArray array = read_idx(directory / name, 3);
    EXPECT_EQ(array.extents, (std::vector<std::size_t>{3, 1009, 997}));
    EXPECT_TRUE(array.bytes == pixels) << name;
  }
}

TEST(ReadIdx, RefusesFilesThatAreNotIdx) {
  const test::TemporaryDirectory directory;
  const std::string file = directory / "images";
  const Bytes good = idx_bytes({2, 2, 2}, test::idx_pixels(8));
  for (const Bytes& bytes : {Bytes{}, Bytes{0, 0}, Bytes(100, 'x')}) {
    write_bytes(file, bytes);
    expect_error<DataError>([&] { (void)read_idx(file, 3); },
                            {file, "not an IDX file", "0x00000803", "again"});
  }
  Bytes floats = good;
  floats[2] = 0x0d;
  write_bytes(file, floats);
  expect_error<DataError>([&] { (void)read_idx(file, 3); }, {file, "0x00000d03"});
  // Labels where images are expected.
  write_bytes(file, idx_bytes({8}, test::idx_labels(8)));
  expect_error<DataError>([&] { (void)read_idx(file, 3); }, {file, "0x00000803", "0x00000801"});
}

TEST(ReadIdx, RefusesMissingAndUnreadableFiles) {
  const test::TemporaryDirectory directory;
  expect_error<DataError>([&] { (void)read_idx(directory / "nothing", 3); },
                          {directory / "nothing", "No such file"});
  expect_error<DataError>([&] { (void)read_idx(directory.path().string(), 3); }, {directory.path().string()});
}

TEST(ReadIdx, RefusesEveryTruncation) {
  const test::TemporaryDirectory directory;
  for (const char* name : {"images", "images.gz"}) {
    const std::string file = directory / name;
    write_bytes(file, idx_bytes({2, 3, 5}, test::idx_pixels(30)));
    const Bytes whole = read_whole_file(file);
    EXPECT_NO_THROW((void)read_idx(file, 3));
    for (std::size_t size = 0; size < whole.size(); ++size) {
      std::ofstream(file, std::ios::binary | std::ios::trunc)
          .write(reinterpret_cast<const char*>(whole.data()), static_cast<std::streamsize>(size));
      expect_error<DataError>([&] { (void)read_idx(file, 3); }, {file, "again"});
    }
  }
  write_bytes(directory / "short", idx_bytes({2, 3, 5}, test::idx_pixels(29)));
  expect_error<DataError>([&] { (void)read_idx(directory / "short", 3); },
                          {"truncated", "2 x 3 x 5 = 30", "29"});
}

TEST(ReadIdx, RefusesWhatFollowsTheEnd) {
  const test::TemporaryDirectory directory;
  for (const char* name : {"images", "images.gz"}) {
    write_bytes(directory / name, idx_bytes({2, 3, 5}, test::idx_pixels(31)));
    expect_error<DataError>([&] { (void)read_idx(directory / name, 3); }, {"too long", "2 x 3 x 5 = 30"});
  }
}

TEST(ReadIdx, RefusesDamagedGzip) {
  const test::TemporaryDirectory directory;
  const std::string file = directory / "images.gz";
  write_bytes(file, idx_bytes({20, 30, 50}, test::idx_pixels(30000)));
  const Bytes whole = read_whole_file(file);
  for (std::size_t position = 20; position < whole.size(); position += 997) {
    Bytes damaged = whole;
    damaged[position] ^= 0x10;
    std::ofstream(file, std::ios::binary | std::ios::trunc)
        .write(reinterpret_cast<const char*>(damaged.data()), static_cast<std::streamsize>(damaged.size()));
    EXPECT_THROW((void)read_idx(file, 3), DataError) << "byte " << position;
  }
}

TEST(ReadIdx, AllocatesNoMoreThanTheFileHolds) {
  const test::TemporaryDirectory directory;
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  for (const auto& extents :
       {std::vector<std::uint32_t>{0xffffffff, 0xffffffff, 0xffffffff},
        std::vector<std::uint32_t>{1u << 22, 1u << 21, 1u << 21},  // the product is 2^64
        std::vector<std::uint32_t>{60000, 1000, 1000}})
    for (const char* name : {"images", "images.gz"}) {
      write_bytes(directory / name, idx_bytes(extents, test::idx_pixels(1000)));
      expect_error<DataError>([&] { (void)read_idx(directory / name, 3); }, {"truncated", "1000"});
    }
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 * 1024);  // KiB
}

TEST(OpenIdx, ReadsBothSplits) {
  for (const char* suffix : {"", ".gz"}) {
    const test::TemporaryDirectory directory;
    test::write_idx_dataset(directory.path(), 25, 7, 4, 3, suffix);
    for (const Split split : {Split::train, Split::test}) {
      const auto dataset =
          open_idx({.name = "tiny", .folder = directory.path().string(), .statistics = {}}, split);
      EXPECT_EQ(dataset->size(), split == Split::train ? 25u : 7u);
      EXPECT_EQ(dataset->height(), 4u);
      EXPECT_EQ(dataset->width(), 3u);
      EXPECT_EQ(dataset->channels(), 1u);
      EXPECT_EQ(dataset->classes(), 10u);
      const Bytes pixels = test::idx_pixels(25 * 12);
      Bytes image(12);
      for (std::size_t i = 0; i < dataset->size(); ++i) {
        dataset->read(i, image.data());
        EXPECT_TRUE(
            std::equal(image.begin(), image.end(), pixels.begin() + static_cast<std::ptrdiff_t>(i * 12)));
        EXPECT_EQ(dataset->label(i), static_cast<int>(i % 10));
      }
      // Statistics are those of the training split for both.
      double sum = 0, squares = 0;
      for (const double pixel : pixels) sum += pixel / 255, squares += pixel / 255 * pixel / 255;
      const double mean = sum / 300;
      EXPECT_NEAR(dataset->info().mean.at(0), mean, 1e-6);
      EXPECT_NEAR(dataset->info().stddev.at(0), std::sqrt(squares / 300 - mean * mean), 1e-6);
    }
  }
}

TEST(OpenIdx, UsesGivenStatisticsAndClasses) {
  const test::TemporaryDirectory directory;
  test::write_idx_dataset(directory.path(), 25, 7, 4, 3);
  const auto dataset = open_idx({.name = "tiny",
                                 .folder = directory.path().string(),
                                 .classes = 47,
                                 .statistics = ChannelStatistics{{0.25f}, {0.5f}}},
                                Split::test);
  EXPECT_EQ(dataset->classes(), 47u);
  EXPECT_EQ(dataset->info().mean, std::vector<float>{0.25f});
  EXPECT_EQ(dataset->info().stddev, std::vector<float>{0.5f});
}

TEST(OpenIdx, NamesWhatIsWrongWithADataset) {
  const test::TemporaryDirectory directory;
  const IdxSource source{.name = "tiny", .folder = directory.path().string(), .statistics = {}};
  const std::string images = directory / "train-images-idx3-ubyte";
  const std::string labels = directory / "train-labels-idx1-ubyte";
  expect_error<DataError>([&] { (void)open_idx(source, Split::train); }, {images, "no such file", ".gz"});

  test::write_idx_dataset(directory.path(), 25, 7, 4, 3);
  write_bytes(labels, idx_bytes({24}, test::idx_labels(24)));
  expect_error<DataError>([&] { (void)open_idx(source, Split::train); },
                          {images, labels, "24 labels", "25 images"});

  Bytes wrong = test::idx_labels(25);
  wrong[17] = 200;
  write_bytes(labels, idx_bytes({25}, wrong));
  expect_error<DataError>([&] { (void)open_idx(source, Split::train); },
                          {labels, "label 200", "sample 17", "10 classes", "0 to 9", "classes=N"});

  write_bytes(images, idx_bytes({0, 4, 3}, {}));
  write_bytes(labels, idx_bytes({0}, {}));
  expect_error<DataError>([&] { (void)open_idx(source, Split::train); }, {images, "no pixels", "0 x 4 x 3"});

  write_bytes(images, idx_bytes({5, 3, 4}, test::idx_pixels(60)));
  expect_error<DataError>([&] { (void)open_idx(source, Split::test); }, {"4 x 3", "3 x 4", images});
}

}  // namespace
}  // namespace annulus
