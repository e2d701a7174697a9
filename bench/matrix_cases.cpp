// Convolutions and linear layers: in the shapes of `cnn` and `mlp` at batch 64 and 256, and large.
#include <fmt/core.h>

#include <algorithm>

#include "bench/kernel_case.h"
#include "kernels/conv2d.h"
#include "kernels/linear.h"
#if ANNULUS_HAS_CUDNN
#include "bench/peers/cudnn_conv2d.h"
#endif

namespace annulus::bench {
namespace {

using kernels::Conv2d;
using kernels::Conv2dShape;
using kernels::Linear;
using kernels::LinearShape;

enum class Part { forward, backward_data, backward_weights };

const char* name_of(Part part) {
  switch (part) {
    case Part::forward:
      return "forward";
    case Part::backward_data:
      return "backward_data";
    case Part::backward_weights:
      break;
  }
  return "backward_weights";
}

/// One part of a convolution or a linear layer: both have the same three.
template <class Kernel>
Computation compute(Arrays& arrays, Part part, Shape input, Shape weights, Shape output, Precision precision,
                    std::shared_ptr<Kernel> kernel) {
  const DType dtype = activation_dtype(precision);
  const Shape channels{weights[0]};
  if (part == Part::forward) {
    const Tensor x = arrays.uniform(input, dtype), w = arrays.uniform(weights, dtype),
                 bias = arrays.uniform(channels, dtype);
    return
        [=, y = arrays.output(output, dtype)](StreamView stream) { kernel->forward(stream, x, w, bias, y); };
  }
  const Tensor dy = arrays.uniform(output, dtype);
  if (part == Part::backward_data) {
    const Tensor w = arrays.uniform(weights, dtype);
    return [=, dx = arrays.output(input, dtype)](StreamView stream) {
      kernel->backward_data(stream, dy, w, Tensor(), dx);
    };
  }
  const Tensor x = arrays.uniform(input, dtype), dw = arrays.output(weights);
  return [=, dbias = arrays.output(channels)](StreamView stream) {
    kernel->backward_weights(stream, x, dy, dw, dbias);
  };
}

class Cases {
 public:
  explicit Cases(Device device) : device_(device) {}

  void add_conv2d(Conv2dShape shape, bool large) {
    for (const Part part : {Part::forward, Part::backward_data, Part::backward_weights}) {
      if (part == Part::backward_data && shape.in_channels == 1) continue;  // a first layer needs none
      const auto engine = [=](const char* name, auto make_kernel) {
        return KernelCase::Engine{name, [=](Arrays& arrays, Device device) {
                                    return compute<Conv2d>(arrays, part, shape.input(), shape.weights(),
                                                           shape.output(), shape.precision,
                                                           make_kernel(device, shape));
                                  }};
      };
      std::vector<KernelCase::Engine> engines{engine("annulus", kernels::make_conv2d)};
#if ANNULUS_HAS_CUDNN
      if (device_.is_cuda()) engines.push_back(engine("cuDNN", make_cudnn_conv2d));
#endif
      const double taps = static_cast<double>(shape.in_channels * shape.kernel_height * shape.kernel_width);
      add(fmt::format("conv2d {}", bench::name_of(part)),
          fmt::format("{} * {}", shape.input().to_string(), shape.weights().to_string()), shape.precision,
          shape.input(), shape.weights(), shape.output(), taps, large, std::move(engines));
    }
  }

  void add_linear(LinearShape shape, bool large) {
    const Shape input{shape.batch, shape.in_features}, weights{shape.out_features, shape.in_features},
        output{shape.batch, shape.out_features};
    for (const Part part : {Part::forward, Part::backward_data, Part::backward_weights}) {
      const auto engine = [=](const char* name, auto make_kernel) {
        return KernelCase::Engine{name, [=](Arrays& arrays, Device device) {
                                    return compute<Linear>(arrays, part, input, weights, output,
                                                           shape.precision, make_kernel(device, shape));
                                  }};
      };
      std::vector<KernelCase::Engine> engines{engine("annulus", kernels::make_linear)};
#if ANNULUS_HAS_CUDA
      if (device_.is_cuda()) engines.push_back(engine("hand-written", kernels::cuda::make_tiled_linear));
#endif
      add(fmt::format("linear {}", bench::name_of(part)),
          fmt::format("[{}, {}] to {}", shape.batch, shape.in_features, shape.out_features), shape.precision,
          input, weights, output, static_cast<double>(shape.in_features), large, std::move(engines));
    }
  }

  std::vector<KernelCase> take() { return std::move(cases_); }

 private:
  void add(std::string kernel, std::string shape, Precision precision, Shape input, Shape weights,
           Shape output, double taps, bool large, std::vector<KernelCase::Engine> engines) {
    if (large && device_.is_cpu()) return;
    const std::size_t elements = input.elements() + weights.elements() + output.elements();
    cases_.push_back({std::move(kernel), std::move(shape), precision,
                      static_cast<double>(elements * size_of(activation_dtype(precision))),
                      2 * taps * static_cast<double>(output.elements()), large, std::move(engines)});
  }

  Device device_;
  std::vector<KernelCase> cases_;
};

}  // namespace

std::vector<KernelCase> matrix_cases(Device device) {
  Cases cases(device);
  std::vector<Precision> precisions{Precision::f32};
  if (device.is_cuda()) precisions.insert(precisions.end(), {Precision::tf32, Precision::bf16});
  for (const Precision precision : precisions) {
    const auto conv2d = [=](std::size_t batch, std::size_t side, std::size_t in, std::size_t out) {
      return Conv2dShape{.batch = batch,
                         .in_height = side,
                         .in_width = side,
                         .in_channels = in,
                         .out_channels = out,
                         .kernel_height = 3,
                         .kernel_width = 3,
                         .padding = 1,
                         .precision = precision};
    };
    const auto linear = [=](std::size_t batch, std::size_t in, std::size_t out) {
      return LinearShape{.batch = batch, .in_features = in, .out_features = out, .precision = precision};
    };
    for (const std::size_t batch : {64, 256}) {
      cases.add_conv2d(conv2d(batch, 28, 1, 32), false);
      cases.add_conv2d(conv2d(batch, 14, 32, 64), false);
      cases.add_linear(linear(batch, 784, 512), false);
      cases.add_linear(linear(batch, 512, 256), false);
      cases.add_linear(linear(batch, 3136, 128), false);
      cases.add_linear(linear(batch, 128, 10), false);
    }
    cases.add_conv2d(conv2d(256, 56, 64, 64), true);
    cases.add_linear(linear(4096, 4096, 4096), true);
  }
  return cases.take();
}

}  // namespace annulus::bench
