#include "io/cifar10.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/idx_files.h"
#include "tests/support/temporary_directory.h"

namespace annulus {
namespace {

using test::Bytes;
using test::expect_error;
using test::write_bytes;

constexpr std::size_t kPlane = 32 * 32;

/// Pixel (c, position) of record `record` of the whole split.
std::uint8_t pixel(std::size_t record, std::size_t channel, std::size_t position) {
  return static_cast<std::uint8_t>(record * 31 + channel * 101 + position * 7);
}

Bytes records(std::size_t first, std::size_t count) {
  Bytes bytes;
  for (std::size_t r = first; r < first + count; ++r) {
    bytes.push_back(static_cast<std::uint8_t>(r % 10));
    for (std::size_t c = 0; c < 3; ++c)
      for (std::size_t p = 0; p < kPlane; ++p) bytes.push_back(pixel(r, c, p));
  }
  return bytes;
}

void write_dataset(const test::TemporaryDirectory& directory) {
  for (std::size_t batch = 0; batch < 5; ++batch)
    write_bytes(directory / ("data_batch_" + std::to_string(batch + 1) + ".bin"), records(batch * 3, 3));
  write_bytes(directory / "test_batch.bin", records(100, 4));
}

TEST(Cifar10, TurnsPlanesIntoChannelsLast) {
  const test::TemporaryDirectory directory;
  write_dataset(directory);
  for (const Split split : {Split::train, Split::test}) {
    const auto dataset = open_cifar10("cifar10", directory.path().string(), split);
    EXPECT_EQ(dataset->size(), split == Split::train ? 15u : 4u);
    EXPECT_EQ(dataset->height(), 32u);
    EXPECT_EQ(dataset->width(), 32u);
    EXPECT_EQ(dataset->channels(), 3u);
    EXPECT_EQ(dataset->classes(), 10u);
    EXPECT_EQ(dataset->info().mean.size(), 3u);
    EXPECT_EQ(dataset->info().stddev.size(), 3u);
    Bytes image(dataset->image_bytes());
    for (std::size_t i = 0; i < dataset->size(); ++i) {
      const std::size_t record = split == Split::train ? i : 100 + i;
      EXPECT_EQ(dataset->label(i), static_cast<int>(record % 10));
      dataset->read(i, image.data());
      for (std::size_t p = 0; p < kPlane; ++p)
        for (std::size_t c = 0; c < 3; ++c) ASSERT_EQ(image[p * 3 + c], pixel(record, c, p));
    }
  }
}

TEST(Cifar10, NamesWhatIsWrongWithADataset) {
  const test::TemporaryDirectory directory;
  const std::string file = directory / "data_batch_4.bin";
  const auto open = [&] { (void)open_cifar10("cifar10", directory.path().string(), Split::train); };
  expect_error<DataError>(open, {directory / "data_batch_1.bin", "No such file", "data_batch_5.bin"});
  write_dataset(directory);

  Bytes bytes = records(9, 3);
  bytes.pop_back();
  write_bytes(file, bytes);
  expect_error<DataError>(open, {file, "3073", "9218 bytes", "truncated"});
  write_bytes(file, {});
  expect_error<DataError>(open, {file, "found 0 bytes"});

  bytes = records(9, 3);
  bytes[3073] = 10;
  write_bytes(file, bytes);
  expect_error<DataError>(open, {file, "label 10 of sample 1", "0 to 9"});

  std::filesystem::remove(file);
  expect_error<DataError>(open, {file, "No such file"});
}

}  // namespace
}  // namespace annulus
