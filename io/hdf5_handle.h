// Owns an HDF5 identifier. Included by sources of io only: public headers do not mention HDF5.
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

/// Keeps HDF5 from printing its error stack while alive: errors become exceptions with our own text. The
/// setting is the calling thread's.
class Hdf5QuietErrors {
 public:
  Hdf5QuietErrors() {
    (void)H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
    (void)H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~Hdf5QuietErrors() { (void)H5Eset_auto2(H5E_DEFAULT, function_, data_); }
  Hdf5QuietErrors(const Hdf5QuietErrors&) = delete;
  Hdf5QuietErrors& operator=(const Hdf5QuietErrors&) = delete;

 private:
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

}  // namespace annulus
