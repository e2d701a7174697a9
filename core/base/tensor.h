// Tensor: a contiguous, row-major view of memory that somebody else owns.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string>

#include "core/base/device.h"
#include "core/base/dtype.h"
#include "core/base/error.h"

namespace annulus {

/// Up to four extents, outermost first. Rank 0 is a scalar with one element.
class Shape {
 public:
  static constexpr std::size_t kMaxRank = 4;

  Shape() = default;

  /// Throws ShapeError past kMaxRank extents or if the element count overflows std::size_t.
  Shape(std::initializer_list<std::size_t> extents);
  Shape(const std::size_t* extents, std::size_t rank);

  std::size_t rank() const { return rank_; }
  std::size_t operator[](std::size_t axis) const { return extents_[axis]; }
  const std::size_t* begin() const { return extents_.data(); }
  const std::size_t* end() const { return extents_.data() + rank_; }

  /// Product of all extents.
  std::size_t elements() const;

  /// "[64, 28, 28, 1]".
  std::string to_string() const;

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::size_t, kMaxRank> extents_{};
  std::size_t rank_ = 0;
};

/// A contiguous, row-major view. Copying it copies the view, never the elements; it does not keep the
/// memory alive. Images are [batch, height, width, channels] on every device (docs/design.md says why).
class Tensor {
 public:
  Tensor() = default;
  Tensor(void* data, Shape shape, DType dtype = DType::f32, Device device = Device::cpu())
      : data_(data), shape_(shape), dtype_(dtype), device_(device) {}

  void* data() const { return data_; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  std::size_t elements() const { return shape_.elements(); }
  std::size_t bytes() const { return elements() * size_of(dtype_); }

  /// True for a default-constructed view, which stands for an absent tensor (a layer without bias).
  bool empty() const { return data_ == nullptr; }

  /// Typed pointer; throws ShapeError if T is not the dtype.
  template <class T>
  T* as() const {
    // Formatted only on failure: the hot path allocates no string.
    if (dtype_ != DTypeOf<T>::value) [[unlikely]]
      fail<ShapeError>("tensor {} holds {}, but {} was asked for", shape_.to_string(), name_of(dtype_),
                       name_of(DTypeOf<T>::value));
    return static_cast<T*>(data_);
  }

  /// The same elements under another shape; throws ShapeError if the element counts differ.
  Tensor reshaped(Shape shape) const;

 private:
  void* data_ = nullptr;
  Shape shape_;
  DType dtype_ = DType::f32;
  Device device_;
};

}  // namespace annulus
