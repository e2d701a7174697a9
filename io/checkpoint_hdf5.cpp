#include "io/checkpoint_hdf5.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "core/base/error.h"

namespace annulus {
namespace {

// The innermost entry of the error stack: what went wrong, rather than who noticed.
std::string hdf5_reason() {
  std::string reason;
  const auto take_first = [](unsigned n, const H5E_error2_t* entry, void* out) -> herr_t {
    if (n == 0 && entry->desc != nullptr) *static_cast<std::string*>(out) = entry->desc;
    return 0;
  };
  (void)H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first, &reason);
  return reason.empty() ? "HDF5 gives no reason" : reason;
}

Hdf5Handle text_type(std::size_t bytes) {
  Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  (void)H5Tset_size(type.get(), std::max<std::size_t>(bytes, 1));  // HDF5 has no strings of size 0
  (void)H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  (void)H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

// The stored bytes of a text: at least one.
std::vector<char> text_bytes(std::string_view text) {
  std::vector<char> bytes(text.begin(), text.end());
  bytes.resize(std::max<std::size_t>(bytes.size(), 1));
  return bytes;
}

void write_scalar(hid_t object, const char* name, hid_t type, const void* value,
                  const std::filesystem::path& path) {
  const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Hdf5Handle attribute =
      hdf5_handle(H5Acreate2(object, name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose, path,
                  fmt::format("create attribute \"{}\"", name));
  hdf5_check(H5Awrite(attribute.get(), type, value), path, fmt::format("write attribute \"{}\"", name));
}

// Reads a scalar of exactly this type, so that what is read fits `value`.
bool read_scalar(hid_t object, const char* name, hid_t type, void* value) {
  if (H5Aexists(object, name) <= 0) return false;
  const Hdf5Handle attribute(H5Aopen(object, name, H5P_DEFAULT), H5Aclose);
  if (!attribute.valid()) return false;
  const Hdf5Handle found(H5Aget_type(attribute.get()), H5Tclose);
  const Hdf5Handle space(H5Aget_space(attribute.get()), H5Sclose);
  return found.valid() && H5Tequal(found.get(), type) > 0 && space.valid() &&
         H5Sget_simple_extent_type(space.get()) == H5S_SCALAR && H5Aread(attribute.get(), type, value) >= 0;
}

struct FloatLayout {
  std::size_t sign, exponent, exponent_bits, mantissa_bits, bias;
};

// A 16-bit little-endian float. The fields move before the size shrinks, as HDF5 asks for.
Hdf5Handle small_float(const FloatLayout& layout) {
  Hdf5Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  (void)H5Tset_fields(type.get(), layout.sign, layout.exponent, layout.exponent_bits, 0,
                      layout.mantissa_bits);
  (void)H5Tset_precision(type.get(), 16);
  (void)H5Tset_size(type.get(), 2);
  (void)H5Tset_ebias(type.get(), layout.bias);
  return type;
}

}  // namespace

Hdf5Handle hdf5_handle(hid_t id, Hdf5Handle::Close close, const std::filesystem::path& path,
                       std::string_view action) {
  require<CheckpointError>(id >= 0, "{}: cannot {}: {}", path.string(), action, id >= 0 ? "" : hdf5_reason());
  return Hdf5Handle(id, close);
}

void hdf5_check(herr_t status, const std::filesystem::path& path, std::string_view action) {
  require<CheckpointError>(status >= 0, "{}: cannot {}: {}", path.string(), action,
                           status >= 0 ? "" : hdf5_reason());
}

Hdf5Handle hdf5_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return Hdf5Handle(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
    case DType::f64:
      return Hdf5Handle(H5Tcopy(H5T_IEEE_F64LE), H5Tclose);
    case DType::bf16:
      return small_float({15, 7, 8, 7, 127});
    case DType::f16:
      return small_float({15, 10, 5, 10, 15});
    case DType::i32:
      return Hdf5Handle(H5Tcopy(H5T_STD_I32LE), H5Tclose);
    case DType::i64:
      return Hdf5Handle(H5Tcopy(H5T_STD_I64LE), H5Tclose);
    case DType::u8:
      return Hdf5Handle(H5Tcopy(H5T_STD_U8LE), H5Tclose);
  }
  fail<CheckpointError>("dtype {} has no HDF5 type", static_cast<int>(dtype));
}

Hdf5Handle hdf5_file_access() {
  Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  // Of HDF5's drivers the one that opens /proc/self/fd/N even if the file has no name any more.
  (void)H5Pset_fapl_stdio(access.get());
  (void)H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG);
  // From 64 KiB on, at a multiple of 4096: whole pages, ready for direct or memory-mapped reading.
  (void)H5Pset_alignment(access.get(), 65536, 4096);
#if H5_VERSION_GE(1, 10, 7)
  (void)H5Pset_file_locking(access.get(), false, true);
#endif
  return access;
}

std::string descriptor_path(int descriptor) { return fmt::format("/proc/self/fd/{}", descriptor); }

void write_attribute(hid_t object, const char* name, std::string_view text,
                     const std::filesystem::path& path) {
  write_scalar(object, name, text_type(text.size()).get(), text_bytes(text).data(), path);
}

void write_attribute(hid_t object, const char* name, std::int64_t number, const std::filesystem::path& path) {
  write_scalar(object, name, H5T_STD_I64LE, &number, path);
}

void write_attribute(hid_t object, const char* name, double number, const std::filesystem::path& path) {
  write_scalar(object, name, H5T_IEEE_F64LE, &number, path);
}

bool has_attribute(hid_t object, const char* name, std::string_view text) {
  const std::vector<char> expected = text_bytes(text);
  std::vector<char> found(expected.size());
  return read_scalar(object, name, text_type(text.size()).get(), found.data()) && found == expected;
}

bool has_attribute(hid_t object, const char* name, std::int64_t number) {
  return read_integer_attribute(object, name) == number;
}

bool has_attribute(hid_t object, const char* name, double number) {
  double found = 0;
  return read_scalar(object, name, H5T_IEEE_F64LE, &found) &&
         std::memcmp(&found, &number, sizeof(found)) == 0;
}

std::optional<std::int64_t> read_integer_attribute(hid_t object, const char* name) {
  std::int64_t number = 0;
  if (!read_scalar(object, name, H5T_STD_I64LE, &number)) return std::nullopt;
  return number;
}

}  // namespace annulus
