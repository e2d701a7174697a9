// Owners of HDF5 identifiers and of the library's settings. Included by sources of io only: public headers do
// not mention HDF5.
#pragma once

#include <hdf5.h>

#include <utility>

namespace annulus {

/// Move-only owner of an HDF5 identifier and of the function that closes it.
class Hdf5Handle {
 public:
  using Close = herr_t (*)(hid_t);

  Hdf5Handle() = default;
  Hdf5Handle(hid_t id, Close close) : id_(id), close_(close) {}
  ~Hdf5Handle() {
    if (id_ >= 0) (void)close_(id_);
  }
  Hdf5Handle(Hdf5Handle&& other) noexcept
      : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }

  hid_t get() const { return id_; }
  bool valid() const { return id_ >= 0; }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

/// Held by the calling thread while HDF5 is in use. Its error stack is not printed: errors become exceptions
/// with our own text. Filters are never loaded from plugins. And the library does nothing at exit, where it
/// may crash after a failed write.
class Hdf5Session {
 public:
  Hdf5Session() {
    (void)H5dont_atexit();  // only works before the first other call, and is harmless later
    (void)H5PLset_loading_state(0);
    (void)H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
    (void)H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~Hdf5Session() { (void)H5Eset_auto2(H5E_DEFAULT, function_, data_); }
  Hdf5Session(const Hdf5Session&) = delete;
  Hdf5Session& operator=(const Hdf5Session&) = delete;

 private:
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

}  // namespace annulus
