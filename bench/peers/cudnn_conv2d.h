// cuDNN behind the interface of our convolution, as a peer of bench_kernels.
#pragma once

#include <memory>

#include "kernels/conv2d.h"

namespace annulus::bench {

/// cuDNN's fastest algorithms for NHWC images, found by trying all when it is planned. cuDNN wants weights in
/// another order and, for bf16, weight gradients in bf16. Programs that use it keep them so; therefore
/// weights are brought into that order, and weight gradients out of it, in the first call with these tensors
/// only.
std::unique_ptr<kernels::Conv2d> make_cudnn_conv2d(Device device, const kernels::Conv2dShape& shape);

}  // namespace annulus::bench
