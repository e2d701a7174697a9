#include "io/hdf5_dataset.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <vector>

#include "core/base/error.h"
#include "io/hdf5_handle.h"
#include "tests/support/expect_error.h"
#include "tests/support/idx_files.h"
#include "tests/support/temporary_directory.h"

namespace annulus {
namespace {

using Extents = std::vector<hsize_t>;
using test::expect_error;

Hdf5Handle create_file(const std::string& path) {
  return Hdf5Handle(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose);
}

Hdf5Handle create_group(hid_t parent, const char* name) {
  return Hdf5Handle(H5Gcreate2(parent, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
}

/// Makes a dataset of `type`, and fills it from `data` (of `memory_type`) if that is not null. `prepare` may
/// change its creation properties.
void write(hid_t parent, const char* name, const Extents& extents, hid_t type, const void* data,
           hid_t memory_type, const std::function<void(hid_t)>& prepare = {}) {
  const Hdf5Handle space(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
                         H5Sclose);
  const Hdf5Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  if (prepare) prepare(properties.get());
  const Hdf5Handle dataset(
      H5Dcreate2(parent, name, type, space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT), H5Dclose);
  ASSERT_TRUE(dataset.valid());
  if (data != nullptr) {
    ASSERT_GE(H5Dwrite(dataset.get(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), 0);
  }
}

void write_images(hid_t parent, const Extents& extents, const std::function<void(hid_t)>& prepare = {}) {
  hsize_t count = 1;
  for (const hsize_t extent : extents) count *= extent;
  write(parent, "images", extents, H5T_STD_U8LE, test::idx_pixels(count).data(), H5T_NATIVE_UINT8, prepare);
}

void write_labels(hid_t parent, std::size_t count, hid_t type = H5T_STD_U8LE,
                  const std::function<void(hid_t)>& prepare = {}) {
  write(parent, "labels", {count}, type, test::idx_labels(count).data(), H5T_NATIVE_UINT8, prepare);
}

void expect_samples(const Dataset& dataset, std::size_t count, std::size_t height, std::size_t width,
                    std::size_t channels) {
  ASSERT_EQ(dataset.size(), count);
  EXPECT_EQ(dataset.height(), height);
  EXPECT_EQ(dataset.width(), width);
  EXPECT_EQ(dataset.channels(), channels);
  const test::Bytes pixels = test::idx_pixels(count * dataset.image_bytes());
  test::Bytes image(dataset.image_bytes());
  for (std::size_t i = 0; i < count; ++i) {
    dataset.read(i, image.data());
    EXPECT_TRUE(std::equal(image.begin(), image.end(),
                           pixels.begin() + static_cast<std::ptrdiff_t>(i * dataset.image_bytes())));
    EXPECT_EQ(dataset.label(i), static_cast<int>(i % 10));
  }
}

Hdf5Source source(const std::string& file, const std::string& test_file = "") {
  return {.name = "hdf5", .file = file, .test_file = test_file};
}

class Hdf5Dataset : public ::testing::Test {
 protected:
  /// Expects that the file at `path_` is refused.
  void expect_refused(std::initializer_list<std::string_view> parts) {
    expect_error<DataError>([&] { (void)open_hdf5(source(path_), Split::train); }, {path_});
    expect_error<DataError>([&] { (void)open_hdf5(source(path_), Split::train); }, parts);
  }

  const Hdf5Session session_;
  const test::TemporaryDirectory directory_;
  const std::string path_ = directory_ / "data.h5";
};

TEST_F(Hdf5Dataset, ReadsGroupsOfOneFile) {
  {
    const Hdf5Handle file = create_file(path_);
    const Hdf5Handle train = create_group(file.get(), "train"), test = create_group(file.get(), "test");
    write_images(train.get(), {30, 4, 5, 3});
    write_labels(train.get(), 30);
    write_images(test.get(), {7, 4, 5, 3});
    write_labels(test.get(), 7);
  }
  EXPECT_TRUE(has_hdf5_test_split(source(path_)));
  const auto train = open_hdf5(source(path_), Split::train), test = open_hdf5(source(path_), Split::test);
  expect_samples(*train, 30, 4, 5, 3);
  expect_samples(*test, 7, 4, 5, 3);
  EXPECT_EQ(train->info().mean, test->info().mean);
  EXPECT_EQ(train->info().stddev, test->info().stddev);
  double sum = 0;
  const test::Bytes pixels = test::idx_pixels(30 * 60);
  for (std::size_t i = 1; i < pixels.size(); i += 3) sum += pixels[i] / 255.0;
  EXPECT_NEAR(train->info().mean.at(1), sum / 600, 1e-6);
}

TEST_F(Hdf5Dataset, ReadsTheRootsOfTwoFiles) {
  const std::string test_path = directory_ / "test.h5";
  {
    const Hdf5Handle file = create_file(path_), test_file = create_file(test_path);
    write_images(file.get(), {12, 4, 5});
    write_labels(file.get(), 12);
    write_images(test_file.get(), {3, 4, 5});
    write_labels(test_file.get(), 3);
  }
  EXPECT_FALSE(has_hdf5_test_split(source(path_)));
  EXPECT_TRUE(has_hdf5_test_split(source(path_, test_path)));
  expect_samples(*open_hdf5(source(path_), Split::train), 12, 4, 5, 1);
  expect_samples(*open_hdf5(source(path_, test_path), Split::test), 3, 4, 5, 1);
  expect_error<DataError>([&] { (void)open_hdf5(source(path_), Split::test); },
                          {path_, "`test`", "test=FILE"});
}

TEST_F(Hdf5Dataset, ReadsEveryLayoutAndIntegerType) {
  const auto chunked = [](hid_t properties) {
    const hsize_t chunk[] = {5, 3, 2};
    (void)H5Pset_chunk(properties, 3, chunk);
  };
  const auto deflated = [&](hid_t properties) {
    chunked(properties);
    (void)H5Pset_deflate(properties, 6);
  };
  const auto compact = [](hid_t properties) { (void)H5Pset_layout(properties, H5D_COMPACT); };
  for (const std::function<void(hid_t)>& prepare :
       {std::function<void(hid_t)>(), std::function<void(hid_t)>(chunked),
        std::function<void(hid_t)>(deflated), std::function<void(hid_t)>(compact)})
    for (const hid_t type : {H5T_STD_I8LE, H5T_STD_U16BE, H5T_STD_I32LE, H5T_STD_U64LE, H5T_STD_I64BE}) {
      {
        const Hdf5Handle file = create_file(path_);
        write_images(file.get(), {23, 4, 5}, prepare);
        write_labels(file.get(), 23, type);
      }
      expect_samples(*open_hdf5(source(path_), Split::train), 23, 4, 5, 1);
    }
}

TEST_F(Hdf5Dataset, ReadsWhatCompressesVeryWell) {
  const test::Bytes zeros(1 << 20);
  {
    const Hdf5Handle file = create_file(path_);
    write(file.get(), "images", {16, 256, 256}, H5T_STD_U8LE, zeros.data(), H5T_NATIVE_UINT8,
          [](hid_t properties) {
            const hsize_t chunk[] = {16, 256, 256};
            (void)H5Pset_chunk(properties, 3, chunk);
            (void)H5Pset_deflate(properties, 9);
          });
    write_labels(file.get(), 16);
  }
  const auto dataset = open_hdf5(source(path_), Split::train);
  EXPECT_EQ(dataset->size(), 16u);
  EXPECT_EQ(dataset->info().stddev, std::vector<float>{1.0f});
}

TEST_F(Hdf5Dataset, RefusesFilesThatAreNotDatasets) {
  expect_refused({"No such file"});
  test::write_bytes(path_, test::Bytes(1000, 'x'));
  expect_refused({"not an HDF5 file", "`images`"});
  { const Hdf5Handle file = create_file(path_); }
  expect_refused({"`images` is missing"});
  {
    const Hdf5Handle file = create_file(path_);
    write_images(file.get(), {5, 4, 5});
  }
  expect_refused({"`labels` is missing"});
  {
    const Hdf5Handle file = create_file(path_);
    const Hdf5Handle group = create_group(file.get(), "images");
  }
  expect_refused({"`images` is not a dataset"});
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  expect_refused({"not a file"});
}

TEST_F(Hdf5Dataset, RefusesWrongTypesAndShapes) {
  const std::vector<float> floats(100);
  {
    const Hdf5Handle file = create_file(path_);
    write(file.get(), "images", {5, 4, 5}, H5T_IEEE_F32LE, floats.data(), H5T_NATIVE_FLOAT);
  }
  expect_refused({"`images` must be u8", "another type", "[5, 4, 5]"});
  {
    const Hdf5Handle file = create_file(path_);
    write_images(file.get(), {25, 4});
  }
  expect_refused({"`images` must be u8", "[25, 4]"});
  {
    const Hdf5Handle file = create_file(path_);
    write_images(file.get(), {5, 0, 5});
  }
  expect_refused({"`images` holds nothing", "[5, 0, 5]"});
  {
    const Hdf5Handle file = create_file(path_);
    write_images(file.get(), {5, 4, 5});
    write(file.get(), "labels", {5}, H5T_IEEE_F32LE, floats.data(), H5T_NATIVE_FLOAT);
  }
  expect_refused({"`labels` must be integers", "another type"});
  {
    const Hdf5Handle file = create_file(path_);
    write_images(file.get(), {5, 4, 5});
    write_labels(file.get(), 4);
  }
  expect_refused({"4 labels", "5 images"});
  for (const std::int64_t label : {std::int64_t{-1}, std::int64_t{10}}) {
    const std::int64_t labels[] = {0, 1, label};
    {
      const Hdf5Handle file = create_file(path_);
      write_images(file.get(), {3, 4, 5});
      write(file.get(), "labels", {3}, H5T_STD_I64LE, labels, H5T_NATIVE_INT64);
    }
    expect_refused({"label " + std::to_string(label) + " of sample 2", "classes=N"});
  }
}

TEST_F(Hdf5Dataset, RefusesATestSplitOfAnotherShape) {
  {
    const Hdf5Handle file = create_file(path_);
    const Hdf5Handle train = create_group(file.get(), "train"), test = create_group(file.get(), "test");
    write_images(train.get(), {10, 4, 5});
    write_images(test.get(), {10, 5, 4});
    write_labels(test.get(), 10);
  }
  expect_error<DataError>([&] { (void)open_hdf5(source(path_), Split::test); }, {"[10, 5, 4]", "[10, 4, 5]"});
}

TEST_F(Hdf5Dataset, AllocatesNothingForWhatIsNotStored) {
  // Chunks that were never written, and late allocation: 2^42 bytes in a file of a few KB.
  const Extents huge = {1u << 22, 1u << 10, 1u << 10};
  for (const bool deflate : {false, true}) {
    {
      const Hdf5Handle file = create_file(path_);
      write(file.get(), "images", huge, H5T_STD_U8LE, nullptr, H5T_NATIVE_UINT8, [&](hid_t properties) {
        const hsize_t chunk[] = {1, 32, 32};
        (void)H5Pset_chunk(properties, 3, chunk);
        if (deflate) (void)H5Pset_deflate(properties, 1);
      });
    }
    EXPECT_LT(std::filesystem::file_size(path_), 100000u);
    expect_refused({"`images` announces [4194304, 1024, 1024]", "stores only 0 bytes"});
  }
  {
    const Hdf5Handle file = create_file(path_);
    write(file.get(), "images", huge, H5T_STD_U8LE, nullptr, H5T_NATIVE_UINT8);
  }
  expect_refused({"`images` announces"});
}

TEST_F(Hdf5Dataset, RefusesTruncatedFiles) {
  {
    const Hdf5Handle file = create_file(path_);
    write_labels(file.get(), 30);
    write_images(file.get(), {30, 100, 10});
  }
  const std::uintmax_t size = std::filesystem::file_size(path_);
  for (const std::uintmax_t cut : {size - 1, size / 2, std::uintmax_t{200}}) {
    std::filesystem::resize_file(path_, cut);
    expect_refused({"damaged"});
  }
}

TEST_F(Hdf5Dataset, RefusesDataThatLiesElsewhere) {
  const std::string other = directory_ / "other";
  test::write_bytes(other, test::idx_pixels(100));
  {
    const Hdf5Handle file = create_file(path_);
    write(file.get(), "images", {5, 4, 5}, H5T_STD_U8LE, nullptr, H5T_NATIVE_UINT8,
          [&](hid_t properties) { (void)H5Pset_external(properties, other.c_str(), 0, 100); });
  }
  expect_refused({"`images`", "external or virtual"});
  {
    const Hdf5Handle file = create_file(path_);
    write(file.get(), "images", {5, 4, 5}, H5T_STD_U8LE, nullptr, H5T_NATIVE_UINT8, [&](hid_t properties) {
      const hsize_t extents[] = {5, 4, 5};
      const Hdf5Handle space(H5Screate_simple(3, extents, nullptr), H5Sclose);
      (void)H5Pset_virtual(properties, space.get(), other.c_str(), "images", space.get());
    });
  }
  expect_refused({"`images`", "external or virtual"});
  {
    const Hdf5Handle file = create_file(path_);
    ASSERT_GE(H5Lcreate_external(other.c_str(), "images", file.get(), "images", H5P_DEFAULT, H5P_DEFAULT), 0);
  }
  expect_refused({"`images` is a soft or external link"});
  {
    const Hdf5Handle file = create_file(path_);
    const Hdf5Handle group = create_group(file.get(), "elsewhere");
    ASSERT_GE(H5Lcreate_soft("/elsewhere", file.get(), "train", H5P_DEFAULT, H5P_DEFAULT), 0);
  }
  expect_refused({"`train` is a soft or external link"});
}

TEST_F(Hdf5Dataset, RefusesOtherFilters) {
  {
    const Hdf5Handle file = create_file(path_);
    write_images(file.get(), {5, 4, 5}, [](hid_t properties) {
      const hsize_t chunk[] = {5, 4, 5};
      (void)H5Pset_chunk(properties, 3, chunk);
      (void)H5Pset_fletcher32(properties);
    });
  }
  expect_refused({"`images` uses HDF5 filter 3", "deflate"});
}

}  // namespace
}  // namespace annulus
