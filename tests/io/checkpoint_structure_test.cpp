// Files that another program made or changed: the reader accepts only what the format allows.
#include "io/checkpoint_structure.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "io/checkpoint_hdf5.h"
#include "io/crc32c.h"
#include "tests/support/checkpoint_samples.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace annulus {
namespace {

using Json = nlohmann::json;
using test::Destinations;
using test::expect_error;
using test::TemporaryDirectory;

// A good checkpoint with f32 parameters "w" and "v" of [4], to spoil with HDF5's own means.
class CheckpointStructureTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"w", "v"})
      tensors_.push_back(tensor_to_save(name, TensorRole::parameter, Tensor(elements_.data(), Shape{4}), {}));
    write_checkpoint(path_, tensors_, {{"step", std::int64_t{7}}});
  }

  // Replaces the file by a good one that `change` has then had its way with.
  void spoil(const std::function<void(hid_t file)>& change) {
    std::filesystem::remove(path_);
    write_checkpoint(path_, tensors_, {{"step", std::int64_t{7}}});
    const Hdf5Handle file(H5Fopen(path_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    ASSERT_TRUE(file.valid());
    change(file.get());
  }

  void expect_refused(std::initializer_list<std::string_view> parts) {
    Destinations destinations(tensors_);
    expect_error<CheckpointError>(
        [&] {
          const CheckpointReader reader(path_);
          reader.verify();
        },
        parts);
  }

  void refuse(std::initializer_list<std::string_view> parts, const std::function<void(hid_t)>& change) {
    spoil(change);
    expect_refused(parts);
  }

  static Hdf5Handle properties() { return Hdf5Handle(H5Pcreate(H5P_DATASET_CREATE), H5Pclose); }

  // Another dataset in place of "w".
  static void replace(hid_t file, const std::vector<hsize_t>& extents, hid_t type, const Hdf5Handle& creation,
                      const char* name = "model/w") {
    ASSERT_GE(H5Ldelete(file, name, H5P_DEFAULT), 0);
    const Hdf5Handle space(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
                           H5Sclose);
    const Hdf5Handle dataset(
        H5Dcreate2(file, name, type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT), H5Dclose);
    ASSERT_TRUE(dataset.valid());
  }

  // Another manifest, with a checksum that fits it.
  static void replace_manifest(hid_t file, const std::string& json) {
    const Hdf5Handle creation = properties();
    H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY);
    replace(file, {json.size()}, H5T_STD_U8LE, creation, "manifest");
    const Hdf5Handle dataset(H5Dopen2(file, "manifest", H5P_DEFAULT), H5Dclose);
    ASSERT_GE(H5Dwrite(dataset.get(), H5T_STD_U8LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, json.data()), 0);
    write_attribute(dataset.get(), "crc32c", std::int64_t{crc32c(std::as_bytes(std::span(json)))}, "test");
  }

  static std::string manifest_of(hid_t file) {
    const Hdf5Handle dataset(H5Dopen2(file, "manifest", H5P_DEFAULT), H5Dclose);
    std::string json(H5Dget_storage_size(dataset.get()), '\0');
    EXPECT_GE(H5Dread(dataset.get(), H5T_STD_U8LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, json.data()), 0);
    return json;
  }

  void refuse_manifest(std::initializer_list<std::string_view> parts,
                       const std::function<void(Json&)>& edit) {
    refuse(parts, [&](hid_t file) {
      Json json = Json::parse(manifest_of(file));
      edit(json);
      replace_manifest(file, json.dump());
    });
  }

  TemporaryDirectory directory_;
  std::string path_ = directory_ / "file.h5";
  std::vector<float> elements_ = {1, 2, 3, 4};
  std::vector<TensorToSave> tensors_;
};

TEST_F(CheckpointStructureTest, AcceptsTheFileItStartsFrom) {
  spoil([](hid_t file) { replace_manifest(file, manifest_of(file)); });
  CheckpointReader(path_).verify();
}

TEST_F(CheckpointStructureTest, RefusesOtherStorage) {
  refuse({path_, "\"w\"", "contiguously"}, [](hid_t file) {
    const Hdf5Handle creation = properties();
    const hsize_t chunk = 2;
    H5Pset_chunk(creation.get(), 1, &chunk);
    replace(file, {4}, H5T_IEEE_F32LE, creation);
  });
  refuse({"\"w\"", "contiguously"}, [](hid_t file) {
    const Hdf5Handle creation = properties();
    H5Pset_layout(creation.get(), H5D_COMPACT);
    replace(file, {4}, H5T_IEEE_F32LE, creation);
  });
  refuse({"\"w\"", "another file"}, [](hid_t file) {
    const Hdf5Handle creation = properties();
    H5Pset_external(creation.get(), "/etc/passwd", 0, 16);
    replace(file, {4}, H5T_IEEE_F32LE, creation);
  });
  refuse({"\"w\"", "contiguously"}, [](hid_t file) {
    const Hdf5Handle creation = properties();
    const hsize_t extent = 4;
    const Hdf5Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose);
    H5Pset_virtual(creation.get(), space.get(), "/etc/passwd", "x", space.get());
    replace(file, {4}, H5T_IEEE_F32LE, creation);
  });
  refuse({"\"w\"", "0 bytes of storage"}, [](hid_t file) {
    const Hdf5Handle creation = properties();
    H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_LATE);
    replace(file, {4}, H5T_IEEE_F32LE, creation);
  });
}

TEST_F(CheckpointStructureTest, RefusesOtherTypesAndShapes) {
  refuse({"\"w\"", "shape"}, [](hid_t file) { replace(file, {1ull << 42}, H5T_IEEE_F32LE, properties()); });
  refuse({"\"w\"", "shape"}, [](hid_t file) { replace(file, {2, 2}, H5T_IEEE_F32LE, properties()); });
  refuse({"\"w\"", "type"}, [](hid_t file) { replace(file, {4}, H5T_IEEE_F32BE, properties()); });
  refuse({"\"w\"", "type"}, [](hid_t file) { replace(file, {4}, H5T_STD_I32LE, properties()); });
  refuse({"\"w\"", "type"}, [](hid_t file) {
    const Hdf5Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
    ASSERT_GE(H5Tcommit2(file, "type", type.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), 0);
    replace(file, {4}, type.get(), properties());
  });
  refuse({"\"w\"", "type"}, [](hid_t file) {
    const Hdf5Handle type(H5Tvlen_create(H5T_IEEE_F32LE), H5Tclose);
    replace(file, {4}, type.get(), properties());
  });
}

TEST_F(CheckpointStructureTest, RefusesLinksThatLeadElsewhere) {
  const auto instead_of_w = [](auto make) {
    return [make](hid_t file) {
      ASSERT_GE(H5Ldelete(file, "model/w", H5P_DEFAULT), 0);
      ASSERT_GE(make(file), 0);
    };
  };
  refuse({"\"w\"", "only hard links"}, instead_of_w([](hid_t file) {
           return H5Lcreate_soft("/model/v", file, "model/w", H5P_DEFAULT, H5P_DEFAULT);
         }));
  refuse({"\"w\"", "only hard links"}, instead_of_w([](hid_t file) {
           return H5Lcreate_external("other.h5", "/model/w", file, "model/w", H5P_DEFAULT, H5P_DEFAULT);
         }));
  refuse({"\"w\"", "starts at byte"}, instead_of_w([](hid_t file) {
           return H5Lcreate_hard(file, "model/v", file, "model/w", H5P_DEFAULT, H5P_DEFAULT);
         }));
  refuse({"\"w\"", "kind of object"}, instead_of_w([](hid_t file) {  // a cycle
           return H5Lcreate_hard(file, "/", file, "model/w", H5P_DEFAULT, H5P_DEFAULT);
         }));
  refuse({"\"w\"", "not in the file"}, [](hid_t file) { H5Ldelete(file, "model/w", H5P_DEFAULT); });
  refuse({"group model", "not in the file"}, [](hid_t file) { H5Ldelete(file, "model", H5P_DEFAULT); });
  refuse({"manifest", "not in the file"}, [](hid_t file) { H5Ldelete(file, "manifest", H5P_DEFAULT); });
}

TEST_F(CheckpointStructureTest, RefusesObjectsThatNobodyListed) {
  const auto add_group = [](const char* name) {
    return
        [name](hid_t file) { (void)H5Gclose(H5Gcreate2(file, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)); };
  };
  refuse({path_, "holds 5 objects; expected 4"}, add_group("extra"));
  refuse({"group model", "holds 3 objects; expected 2"}, add_group("model/extra"));
  refuse({"group optimizer", "holds 1 objects; expected 0"}, add_group("optimizer/extra"));
}

TEST_F(CheckpointStructureTest, RefusesTensorsThatShareBytes) {
  refuse({"shares bytes", "\"w\"", "\"v\""}, [](hid_t file) {
    ASSERT_GE(H5Ldelete(file, "model/w", H5P_DEFAULT), 0);
    ASSERT_GE(H5Lcreate_hard(file, "model/v", file, "model/w", H5P_DEFAULT, H5P_DEFAULT), 0);
    Json json = Json::parse(manifest_of(file));
    json["tensors"][0]["offset"] = json["tensors"][1]["offset"];
    replace_manifest(file, json.dump());
  });
}

TEST_F(CheckpointStructureTest, RefusesAttributesThatDisagreeWithTheManifest) {
  const auto change = [](const char* object, const char* name, auto value) {
    return [=](hid_t file) {
      ASSERT_GE(H5Adelete_by_name(file, object, name, H5P_DEFAULT), 0);
      const Hdf5Handle handle(H5Oopen(file, object, H5P_DEFAULT), H5Oclose);
      write_attribute(handle.get(), name, value, "test");
    };
  };
  refuse({"\"w\"", "\"device\""}, change("model/w", "device", "cuda:5"));
  refuse({"\"w\"", "\"of\""}, change("model/w", "of", "v"));
  refuse({"\"w\"", "\"rank\""}, change("model/w", "rank", std::int64_t{3}));
  refuse({"\"w\"", "\"crc32c\""}, change("model/w", "crc32c", std::int64_t{3}));
  refuse({"\"w\"", "\"crc32c\""}, change("model/w", "crc32c", 3.0));
  refuse({"\"step\""}, change("training", "step", std::int64_t{8}));
  refuse({"\"step\""}, change("training", "step", "7"));
  refuse({"engine_version"}, change("/", "engine_version", "99"));
  refuse({"not a checkpoint"}, change("/", "format", "other"));
  refuse({"format version 2", "reads version 1"}, change("/", "format_version", std::int64_t{2}));
  refuse({"no format version"}, change("/", "format_version", "1"));
  refuse({"manifest", "checksum"}, change("manifest", "crc32c", std::int64_t{1}));
}

TEST_F(CheckpointStructureTest, RefusesManifestsThatMakeNoSense) {
  const auto first = [](const char* key, Json value) {
    return [=](Json& json) { json["tensors"][0][key] = value; };
  };
  refuse_manifest({"manifest", "dtype"}, first("dtype", "f8"));
  refuse_manifest({"manifest", "role"}, first("role", "spy"));
  refuse_manifest({"manifest"}, first("shape", "four"));
  refuse_manifest({"manifest", "-4"}, first("shape", {-4}));
  refuse_manifest({"manifest", "4.0"}, first("shape", {4.0}));
  refuse_manifest({"\"w\"", "multiply"}, first("shape", {1ull << 42, 1ull << 42}));
  refuse_manifest({"\"w\"", "multiply"}, first("shape", {0, 1ull << 62}));
  refuse_manifest({"\"w\"", "dimensions"}, first("shape", Json(std::vector<int>(9, 1))));
  refuse_manifest({"\"w\"", "starts at byte"}, first("offset", 0));
  refuse_manifest({"manifest", "checksum"}, first("crc32c", "xyz"));
  refuse_manifest({"\"w\"", "checksum of its elements"}, first("crc32c", "00000000"));
  refuse_manifest({"\"w\"", "device tag"}, first("device", "cuda"));
  refuse_manifest({"manifest"}, first("rank", 1ull << 40));
  refuse_manifest({"manifest", "name"}, [](Json& json) { json["tensors"][0].erase("name"); });
  refuse_manifest({"control characters"}, first("name", "a\x1B[2J"));
  refuse_manifest({"twice"}, first("name", "v"));
  refuse_manifest({"\"x\"", "not in the file"}, first("name", "x"));
  refuse_manifest({"\"../training\"", "not in the file"}, first("name", "../training"));
  refuse_manifest({"group model", "2 objects; expected 1"}, [](Json& json) { json["tensors"].erase(0); });
  refuse_manifest({"manifest"}, [](Json& json) { json["tensors"] = 3; });
  refuse_manifest({"manifest"}, [](Json& json) { json["attributes"] = Json::array(); });
  refuse_manifest({"manifest"}, [](Json& json) { json["attributes"]["step"] = nullptr; });
  refuse_manifest({"manifest", "18446744073709551615"},
                  [](Json& json) { json["attributes"]["step"] = UINT64_MAX; });
  refuse_manifest({"another format or version"}, [](Json& json) { json["version"] = 2; });
  refuse_manifest({"manifest"}, [](Json& json) { json = Json::array(); });
}

TEST_F(CheckpointStructureTest, RefusesManifestsThatAreNoJson) {
  for (const std::string& text : {std::string("{"), std::string("\0", 1), std::string("\"\xFF\"")})
    refuse({"manifest"}, [&](hid_t file) { replace_manifest(file, text); });
  refuse({"nested"}, [&](hid_t file) { replace_manifest(file, std::string(1 << 20, '[')); });
  refuse({"at most"}, [&](hid_t file) { replace_manifest(file, std::string(40 << 20, ' ')); });
}

TEST_F(CheckpointStructureTest, IgnoresManifestKeysOfLaterVersions) {
  spoil([](hid_t file) {
    Json json = Json::parse(manifest_of(file));
    json["note"] = "from the future";
    json["tensors"][0]["compression"] = "none";
    replace_manifest(file, json.dump());
  });
  CheckpointReader(path_).verify();
}

TEST_F(CheckpointStructureTest, RefusesAUserBlock) {
  const Hdf5Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  H5Pset_userblock(creation.get(), 512);
  {
    const Hdf5Handle file(H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, creation.get(), H5P_DEFAULT), H5Fclose);
    ASSERT_TRUE(file.valid());
  }
  expect_refused({"not an HDF5 file"});
}

}  // namespace
}  // namespace annulus
