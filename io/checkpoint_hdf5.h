// The little of HDF5 that checkpoints use: element types, attributes, and errors with a reason.
// Included by sources of io only.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/dtype.h"
#include "io/hdf5_handle.h"

namespace annulus {

/// Takes over the result of an HDF5 call that makes an identifier. Throws CheckpointError if it failed:
/// PATH: cannot ACTION: what HDF5 says.
Hdf5Handle hdf5_handle(hid_t id, Hdf5Handle::Close close, const std::filesystem::path& path,
                       std::string_view action);

/// The same for calls that return a status.
void hdf5_check(herr_t status, const std::filesystem::path& path, std::string_view action);

/// The file type of a dtype, little-endian. f16 and bf16 are floats that h5py reads as float16 and float32.
Hdf5Handle hdf5_type(DType dtype);

/// Access properties: no file locks (they fail on NFS), aligned tensors, descriptor_path() as path.
Hdf5Handle hdf5_file_access();

/// The path by which HDF5 opens a descriptor that is already open.
std::string descriptor_path(int descriptor);

/// Scalar attributes. Texts are of fixed length, UTF-8.
void write_attribute(hid_t object, const char* name, std::string_view text,
                     const std::filesystem::path& path);
void write_attribute(hid_t object, const char* name, std::int64_t number, const std::filesystem::path& path);
void write_attribute(hid_t object, const char* name, double number, const std::filesystem::path& path);

/// True if the object has an attribute that write_attribute would have written so.
bool has_attribute(hid_t object, const char* name, std::string_view text);
bool has_attribute(hid_t object, const char* name, std::int64_t number);
bool has_attribute(hid_t object, const char* name, double number);

/// A whole number, if the object has an attribute of this name and of that type.
std::optional<std::int64_t> read_integer_attribute(hid_t object, const char* name);

}  // namespace annulus
