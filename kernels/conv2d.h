// Two-dimensional convolution (cross-correlation, as in every deep-learning library), planned once per
// shape. Activations are [batch, height, width, channels]; weights are [out_channels, in_channels,
// kernel_height, kernel_width] as in PyTorch, in the parameter arena of every device.
#pragma once

#include <memory>

#include "core/base/precision.h"
#include "core/base/stream.h"
#include "core/base/tensor.h"

namespace annulus::kernels {

struct Conv2dShape {
  std::size_t batch = 0;
  std::size_t in_height = 0, in_width = 0, in_channels = 0;
  std::size_t out_channels = 0;
  std::size_t kernel_height = 1, kernel_width = 1;
  std::size_t stride = 1;   ///< in both directions
  std::size_t padding = 0;  ///< zeros on all four sides
  bool bias = true;         ///< y += bias, in the epilogue
  bool relu = false;        ///< y = max(y, 0), in the epilogue
  Precision precision = Precision::f32;

  std::size_t out_height() const { return (in_height + 2 * padding - kernel_height) / stride + 1; }
  std::size_t out_width() const { return (in_width + 2 * padding - kernel_width) / stride + 1; }
  Shape input() const { return {batch, in_height, in_width, in_channels}; }
  Shape weights() const { return {out_channels, in_channels, kernel_height, kernel_width}; }
  Shape output() const { return {batch, out_height(), out_width(), out_channels}; }

  /// Throws ShapeError for empty extents, a zero stride or a kernel larger than the padded input.
  void check() const;
};

/// A convolution whose primitives and workspaces exist before its first call; calls allocate nothing.
/// x, y, dx, dy, weights and bias have activation_dtype(precision), gradients of parameters are f32; all are
/// on the plan's device. Outputs are overwritten, never accumulated.
class Conv2d {
 public:
  virtual ~Conv2d() = default;

  /// y = [relu](x * weights + bias). `bias` is empty when the shape has none.
  virtual void forward(StreamView stream, const Tensor& x, const Tensor& weights, const Tensor& bias,
                       const Tensor& y) = 0;

  /// dx from dy. With relu, dy is the gradient before the ReLU: the caller has masked it. `relu_output` is
  /// empty, or the x of the forward pass if a ReLU made it: then dx is 0 where x is not above 0.
  virtual void backward_data(StreamView stream, const Tensor& dy, const Tensor& weights,
                             const Tensor& relu_output, const Tensor& dx) = 0;

  /// dweights and, unless empty, dbias from x and dy (masked as above). Summed in a fixed order.
  virtual void backward_weights(StreamView stream, const Tensor& x, const Tensor& dy, const Tensor& dweights,
                                const Tensor& dbias) = 0;
};

/// Plans a convolution on `device`. Throws ShapeError, DeviceError, and ConfigError for a precision other
/// than f32 on the CPU.
std::unique_ptr<Conv2d> make_conv2d(Device device, const Conv2dShape& shape);

namespace cpu {
decltype(kernels::make_conv2d) make_conv2d;
}
namespace cuda {
decltype(kernels::make_conv2d) make_conv2d;
}

}  // namespace annulus::kernels
