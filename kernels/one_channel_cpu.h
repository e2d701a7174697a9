// Weight gradient of a convolution over one input channel, the first layer on grey images. oneDNN's
// channels-last kernel has one lane of each vector to work with there; as a matrix product over unrolled
// windows (im2col) the vectors run along the output channels (docs/cpu-backend.md has the figures).
#pragma once

#include "kernels/conv2d.h"
#include "kernels/onednn_cpu.h"

namespace annulus::kernels::cpu {

/// Planned once per shape.
class OneChannelWeightGradient {
 public:
  /// One input channel, and an unrolled image that stays in the cache.
  static bool suits(const Conv2dShape& shape);

  explicit OneChannelWeightGradient(const Conv2dShape& shape);

  /// From x [batch, height, width] and dy [batch, height, width, out_channels]; overwrites dweights
  /// [out_channels, kernel height, kernel width] and, if the shape has a bias, dbias [out_channels].
  void run(const float* x, const float* dy, float* dweights, float* dbias);

 private:
  void unroll(const float* image);

  Conv2dShape shape_;
  OnednnContext context_;
  OnednnPrimitive product_;  // sums_ += windows_ * dy of one image
  Buffer windows_;           // [taps, output pixels] what each tap sees; with a bias one more row of ones
  Buffer sums_;              // [taps, out_channels]; with a bias one more row
};

}  // namespace annulus::kernels::cpu
