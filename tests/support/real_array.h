// Arrays of real numbers on any device, in whichever format a case is about; tests see them as float.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/half.h"
#include "core/base/tensor.h"

namespace annulus::test {

/// `value` rounded to `dtype`: f32, bf16 or f16.
inline float rounded_to(DType dtype, float value) {
  if (dtype == DType::bf16) return to_float(to_bfloat16(value));
  if (dtype == DType::f16) return to_float(to_float16(value));
  require<ShapeError>(dtype == DType::f32, "a RealArray cannot hold {}", name_of(dtype));
  return value;
}

inline std::vector<float> rounded_to(DType dtype, std::vector<float> values) {
  for (float& value : values) value = rounded_to(dtype, value);
  return values;
}

/// Distance of 1 and the next number of the format: f32, bf16 or f16.
constexpr double epsilon_of(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-7 : dtype == DType::f16 ? 0x1p-10 : 0x1p-23;
}

/// Owns elements of `dtype` on one device. New ones are poisoned (NaN), so that an output element that an op
/// forgets is seen. With `skip` the elements start so many past an allocation's: at a misaligned address.
class RealArray {
 public:
  RealArray(const Stream& stream, Shape shape, DType dtype, std::size_t skip = 0)
      : RealArray(stream, shape, dtype, std::vector<float>(shape.elements(), __builtin_nanf("")), skip) {}

  RealArray(const Stream& stream, Shape shape, DType dtype, const std::vector<float>& values,
            std::size_t skip = 0)
      : stream_(stream.view()),
        shape_(shape),
        dtype_(dtype),
        skip_bytes_(skip * size_of(dtype)),
        buffer_(stream.device(), shape.elements() * size_of(dtype) + skip_bytes_) {
    require<ShapeError>(values.size() == shape.elements(), "{} values for shape {}", values.size(),
                        shape.to_string());
    std::vector<char> bytes(values.size() * size_of(dtype));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto put = [&](auto value) {
        std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
      };
      if (dtype == DType::bf16)
        put(to_bfloat16(values[i]));
      else if (dtype == DType::f16)
        put(to_float16(values[i]));
      else
        put(rounded_to(dtype, values[i]));
    }
    copy_bytes(stream_, tensor().data(), bytes.data(), bytes.size());
    stream_.synchronize();
  }

  Tensor tensor() const {
    return Tensor(static_cast<char*>(buffer_.data()) + skip_bytes_, shape_, dtype_, buffer_.device());
  }
  operator Tensor() const { return tensor(); }

  /// The elements, once all work on the stream is done.
  std::vector<float> values() const {
    std::vector<char> bytes(shape_.elements() * size_of(dtype_));
    copy_bytes(stream_, bytes.data(), tensor().data(), bytes.size());
    stream_.synchronize();
    std::vector<float> result(shape_.elements());
    for (std::size_t i = 0; i < result.size(); ++i) {
      const auto get = [&](auto value) {
        std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
        return to_float(value);
      };
      result[i] = dtype_ == DType::bf16 ? get(BFloat16{}) : dtype_ == DType::f16 ? get(Float16{}) : get(0.0f);
    }
    return result;
  }

 private:
  StreamView stream_;
  Shape shape_;
  DType dtype_;
  std::size_t skip_bytes_;
  Buffer buffer_;
};

}  // namespace annulus::test
