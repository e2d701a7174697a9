// Max pooling and global average pooling over [batch, height, width, channels]; overwriting. f32, or on CUDA
// devices bf16: all floating tensors of a call alike.
#pragma once

#include "core/base/stream.h"
#include "core/base/tensor.h"

namespace annulus::kernels {

struct Pool2dShape {
  std::size_t batch = 0;
  std::size_t in_height = 0, in_width = 0, channels = 0;
  std::size_t window = 2;  ///< in both directions, at most 15: a position in the window fits in u8
  std::size_t stride = 2;  ///< in both directions

  std::size_t out_height() const { return (in_height - window) / stride + 1; }
  std::size_t out_width() const { return (in_width - window) / stride + 1; }
  Shape input() const { return {batch, in_height, in_width, channels}; }
  Shape output() const { return {batch, out_height(), out_width(), channels}; }

  /// Throws ShapeError for empty extents, a zero stride or a window that does not fit.
  void check() const;
};

/// y = maximum over each window, and argmax (u8, shape of y) = row * window + column of the first
/// largest element in the window, rows first. NaN counts as largest, as in PyTorch.
void max_pool2d_forward(StreamView stream, const Pool2dShape& shape, const Tensor& x, const Tensor& y,
                        const Tensor& argmax);

/// dx = dy added at each window's argmax, zero elsewhere. `relu_output` is empty, or the y of the
/// forward pass when x was the output of a ReLU: dy is then dropped where y is 0, which is the ReLU's
/// own gradient, so that no separate pass over dx is needed. Overlapping windows add in window order.
void max_pool2d_backward(StreamView stream, const Pool2dShape& shape, const Tensor& dy, const Tensor& argmax,
                         const Tensor& relu_output, const Tensor& dx);

/// y[batch, channels] = mean of x[batch, height, width, channels] over height and width.
void global_average_pool_forward(StreamView stream, const Tensor& x, const Tensor& y);

/// dx = dy / (height * width), broadcast.
void global_average_pool_backward(StreamView stream, const Tensor& dy, const Tensor& dx);

namespace cpu {
decltype(kernels::max_pool2d_forward) max_pool2d_forward;
decltype(kernels::max_pool2d_backward) max_pool2d_backward;
decltype(kernels::global_average_pool_forward) global_average_pool_forward;
decltype(kernels::global_average_pool_backward) global_average_pool_backward;
}  // namespace cpu
namespace cuda {
decltype(kernels::max_pool2d_forward) max_pool2d_forward;
decltype(kernels::max_pool2d_backward) max_pool2d_backward;
decltype(kernels::global_average_pool_forward) global_average_pool_forward;
decltype(kernels::global_average_pool_backward) global_average_pool_backward;
}  // namespace cuda

}  // namespace annulus::kernels
