#include "io/dataset.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <vector>

#include "core/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/idx_files.h"
#include "tests/support/temporary_directory.h"

namespace annulus {
namespace {

using test::expect_error;

TEST(OpenDataset, FindsFashionMnistInItsFolders) {
  const test::TemporaryDirectory directory;
  test::write_idx_dataset(directory.path() / "data/fashion-mnist", 20, 10, 28, 28, ".gz");
  test::write_idx_dataset(directory.path() / "home/.cache/annulus/fashion-mnist", 30, 10, 28, 28, ".gz");
  setenv("ANNULUS_DATA", (directory / "data").c_str(), 1);
  setenv("HOME", (directory / "home").c_str(), 1);
  const auto train = open_dataset("fashion-mnist", Split::train);
  EXPECT_EQ(train->size(), 20u);
  EXPECT_EQ(train->info().name, "fashion-mnist, train split");
  EXPECT_EQ(open_dataset("fashion-mnist", Split::test)->info().mean, std::vector<float>{0.2860f});
  EXPECT_EQ(train->info().stddev, std::vector<float>{0.3530f});
  EXPECT_TRUE(has_test_split("fashion-mnist"));

  // The last of the folders, unless the system has the dataset.
  setenv("ANNULUS_DATA", (directory / "elsewhere").c_str(), 1);
  if (std::filesystem::exists("/usr/share/datasets/fashion-mnist")) return;
  EXPECT_EQ(open_dataset("fashion-mnist", Split::train)->size(), 30u);
  setenv("HOME", (directory / "elsewhere").c_str(), 1);
  expect_error<DataError>([] { (void)open_dataset("fashion-mnist", Split::train); },
                          {directory / "elsewhere/fashion-mnist", "/usr/share/datasets/fashion-mnist",
                           ".cache/annulus/fashion-mnist", "dataset-fashion-mnist", "tools/quickstart.sh"});
}

TEST(OpenDataset, OpensFoldersOfIdxFiles) {
  const test::TemporaryDirectory directory;
  test::write_idx_dataset(directory.path(), 20, 10, 5, 6);
  for (const std::string& spec : {"idx:" + directory.path().string(), directory.path().string()}) {
    const auto dataset = open_dataset(spec, Split::test);
    EXPECT_EQ(dataset->size(), 10u);
    EXPECT_EQ(dataset->width(), 6u);
    EXPECT_EQ(dataset->info().name, spec + ", test split");
    EXPECT_TRUE(has_test_split(spec));
  }
  const std::string spec = "idx:" + directory.path().string() + ",classes=";
  EXPECT_EQ(open_dataset(spec + "26", Split::train)->classes(), 26u);
  expect_error<DataError>([&] { (void)open_dataset(spec + "9", Split::train); }, {"label 9 of sample 9"});
  expect_error<ConfigError>([&] { (void)open_dataset(spec + "0", Split::train); }, {"classes", "\"0\""});
}

TEST(OpenDataset, NamesTheFilesOfOtherKinds) {
  expect_error<DataError>([] { (void)open_dataset("cifar10:/nowhere", Split::test); },
                          {"/nowhere/test_batch.bin"});
  expect_error<DataError>([] { (void)open_dataset("hdf5:/nowhere.h5", Split::train); }, {"/nowhere.h5"});
  expect_error<DataError>([] { (void)open_dataset("hdf5:/a.h5,test=/b.h5", Split::test); }, {"/b.h5"});
  expect_error<DataError>([] { (void)has_test_split("hdf5:/nowhere.h5"); }, {"/nowhere.h5"});
  EXPECT_TRUE(has_test_split("hdf5:/a.h5,test=/b.h5"));
}

TEST(OpenDataset, MakesSyntheticData) {
  const auto train = open_dataset("synthetic:28x30x3", Split::train);
  EXPECT_EQ(train->size(), 1000u);
  EXPECT_EQ(train->height(), 28u);
  EXPECT_EQ(train->width(), 30u);
  EXPECT_EQ(train->channels(), 3u);
  EXPECT_EQ(train->classes(), 10u);
  const std::string spec = "synthetic:4x4x1,classes=3,samples=52,seed=9";
  EXPECT_EQ(open_dataset(spec, Split::train)->size(), 52u);
  EXPECT_EQ(open_dataset(spec, Split::test)->size(), 11u);
  EXPECT_EQ(open_dataset(spec, Split::test)->classes(), 3u);
  for (const char* shape : {"28x28", "28x28x1x1", "28x28x", "x28x1", "28x28x0", "axbxc", "28,28,1", "-1x2x3"})
    expect_error<ConfigError>([&] { (void)open_dataset(std::string("synthetic:") + shape, Split::train); },
                              {shape, "height x width x channels"});
  EXPECT_THROW((void)open_dataset("synthetic:4294967296x4294967296x1", Split::train), ShapeError);
}

}  // namespace
}  // namespace annulus
