// What every op says about an argument that does not fit. Checked once, in the public function, before a
// back end is chosen.
#pragma once

#include "core/base/error.h"
#include "core/base/precision.h"
#include "core/base/stream.h"
#include "core/base/tensor.h"

namespace annulus::kernels {

/// Throws ShapeError that names the op and the argument unless `tensor` has this shape and dtype, is on
/// this device and has memory behind its elements.
inline void check_tensor(const char* op, const char* argument, const Tensor& tensor, const Shape& shape,
                         Device device, DType dtype = DType::f32) {
  if (tensor.shape() == shape && tensor.dtype() == dtype && tensor.device() == device &&
      (tensor.data() != nullptr || shape.elements() == 0)) [[likely]]
    return;
  fail<ShapeError>("{}: {} must be {} {} on {}, but is {} {} on {}{}", op, argument, name_of(dtype),
                   shape.to_string(), device.to_string(), name_of(tensor.dtype()), tensor.shape().to_string(),
                   tensor.device().to_string(), tensor.data() == nullptr ? " without memory" : "");
}

/// Throws ConfigError that names the op unless `precision` is f32: the CPU back end knows no other.
inline void check_precision(const char* op, Precision precision) {
  require<ConfigError>(precision == Precision::f32,
                       "{}: the precision {} needs a CUDA device; the cpu computes in f32 only", op,
                       name_of(precision));
}

/// The same for an activation or its gradient of any shape, which is f32 or, on a CUDA device, bf16. Returns
/// its dtype.
inline DType check_activation(const char* op, const char* argument, const Tensor& tensor, Device device) {
  const DType dtype = tensor.dtype();
  if (dtype == DType::bf16) [[unlikely]]
    require<ShapeError>(device.is_cuda(),
                        "{}: {} is bf16, which needs a CUDA device; the CPU computes in f32", op, argument);
  check_tensor(op, argument, tensor, tensor.shape(), device, dtype == DType::bf16 ? dtype : DType::f32);
  return dtype;
}

/// Throws ShapeError that names the op and the argument unless `tensor` has this many axes.
inline void check_rank(const char* op, const char* argument, const Tensor& tensor, std::size_t rank) {
  if (tensor.shape().rank() != rank) [[unlikely]]
    fail<ShapeError>("{}: {} must have {} axes, but its shape is {}", op, argument, rank,
                     tensor.shape().to_string());
}

}  // namespace annulus::kernels
