// Fully connected layer y = x W^T + b, planned once per shape. x is [batch, in_features], W is
// [out_features, in_features] as in PyTorch, y is [batch, out_features]; all row-major.
#pragma once

#include <memory>

#include "core/base/precision.h"
#include "core/base/stream.h"
#include "core/base/tensor.h"

namespace annulus::kernels {

struct LinearShape {
  std::size_t batch = 0;
  std::size_t in_features = 0;
  std::size_t out_features = 0;
  bool bias = true;   ///< y += bias, in the epilogue
  bool relu = false;  ///< y = max(y, 0), in the epilogue
  Precision precision = Precision::f32;
};

/// A linear layer whose primitives and workspaces exist before its first call; calls allocate nothing.
/// x, y, dx, dy, weights and bias have activation_dtype(precision), gradients of parameters are f32. Outputs
/// are overwritten, never accumulated.
class Linear {
 public:
  virtual ~Linear() = default;

  /// y = [relu](x W^T + bias). `bias` is empty when the shape has none.
  virtual void forward(StreamView stream, const Tensor& x, const Tensor& weights, const Tensor& bias,
                       const Tensor& y) = 0;

  /// dx = dy W. With relu, dy is the gradient before the ReLU: the caller has masked it. `relu_output` is
  /// empty, or the x of the forward pass if a ReLU made it: then dx is 0 where x is not above 0.
  virtual void backward_data(StreamView stream, const Tensor& dy, const Tensor& weights,
                             const Tensor& relu_output, const Tensor& dx) = 0;

  /// dweights = dy^T x and, unless empty, dbias = column sums of dy. Summed in a fixed order.
  virtual void backward_weights(StreamView stream, const Tensor& x, const Tensor& dy, const Tensor& dweights,
                                const Tensor& dbias) = 0;
};

/// Plans a linear layer on `device`. Throws ShapeError, DeviceError, and ConfigError for a precision other
/// than f32 on the CPU.
std::unique_ptr<Linear> make_linear(Device device, const LinearShape& shape);

namespace cpu {
decltype(kernels::make_linear) make_linear;
}
namespace cuda {
/// On cuBLASLt or, in a shape for which it has no algorithm, the hand-written product.
decltype(kernels::make_linear) make_linear;

/// Throws DeviceError that names the shape if cuBLASLt has no algorithm for it.
decltype(kernels::make_linear) make_cublaslt_linear;

/// The hand-written matrix product of device/tiled_gemm.h, in any shape.
decltype(kernels::make_linear) make_tiled_linear;
}  // namespace cuda

}  // namespace annulus::kernels
