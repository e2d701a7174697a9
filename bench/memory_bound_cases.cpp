// The kernels whose limit is memory: in the shapes of `cnn` at batch 64 and 256, and large.
#include <fmt/core.h>

#include "bench/kernel_case.h"
#include "core/base/step_values.h"
#include "kernels/activation.h"
#include "kernels/augment.h"
#include "kernels/batch_norm.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"
#include "kernels/pool2d.h"
#include "kernels/reduce.h"
#include "kernels/softmax_cross_entropy.h"

namespace annulus::bench {
namespace {

using Make = std::function<Computation(Arrays& arrays, Device device)>;

class Cases {
 public:
  explicit Cases(Device device) : device_(device) {}

  void add(std::string kernel, std::string shape, DType dtype, double bytes, bool large, Make make) {
    if (large && device_.is_cpu()) return;
    const Precision precision = dtype == DType::bf16 ? Precision::bf16 : Precision::f32;
    cases_.push_back(
        {std::move(kernel), std::move(shape), precision, bytes, 0, large, {{"annulus", std::move(make)}}});
  }

  std::vector<KernelCase> take() { return std::move(cases_); }

 private:
  Device device_;
  std::vector<KernelCase> cases_;
};

/// A StepValues in the device's memory.
const StepValues* step_values(Arrays& arrays, Device device) {
  const StepValues host{.learning_rate = 0.1f, .adamw_step_size = 0.1f, .adamw_inverse_root_correction = 1};
  void* const values = arrays.workspace(sizeof(host));
  const StreamView stream(device, nullptr);
  copy_bytes(stream, values, &host, sizeof(host));
  stream.synchronize();
  return static_cast<const StepValues*>(values);
}

void add_elementwise(Cases& cases, std::size_t count, DType dtype, bool large) {
  const double array = static_cast<double>(count * size_of(dtype));
  const std::string shape = fmt::format("{}", count);
  cases.add("add", shape, dtype, 3 * array, large, [=](Arrays& arrays, Device) -> Computation {
    const Tensor a = arrays.uniform({count}, dtype), b = arrays.uniform({count}, dtype);
    return [a, b, y = arrays.output({count}, dtype)](StreamView stream) { kernels::add(stream, a, b, y); };
  });
  cases.add("relu forward", shape, dtype, 2 * array, large, [=](Arrays& arrays, Device) -> Computation {
    const Tensor x = arrays.uniform({count}, dtype);
    return [x, y = arrays.output({count}, dtype)](StreamView stream) { kernels::relu_forward(stream, x, y); };
  });
  cases.add("relu backward", shape, dtype, 3 * array, large, [=](Arrays& arrays, Device) -> Computation {
    const Tensor dy = arrays.uniform({count}, dtype), y = arrays.uniform({count}, dtype);
    return [dy, y, dx = arrays.output({count}, dtype)](StreamView stream) {
      kernels::relu_backward(stream, dy, y, dx);
    };
  });
  cases.add("dropout", shape, dtype, 2 * array, large, [=](Arrays& arrays, Device device) -> Computation {
    const Shape rows{64, count / 64};
    const Tensor x = arrays.uniform(rows, dtype);
    const kernels::DropoutKey key{.seed = 1, .values = step_values(arrays, device)};
    return [key, x, y = arrays.output(rows, dtype)](StreamView stream) {
      kernels::dropout(stream, key, 0.5f, x, y);
    };
  });
  cases.add("sum", shape, dtype, array, large, [=](Arrays& arrays, Device device) -> Computation {
    const Tensor x = arrays.uniform({count}, dtype);
    void* const workspace = arrays.workspace(kernels::reduce_workspace_bytes(device, count));
    return [=, y = arrays.output({1})](StreamView stream) { kernels::sum(stream, x, workspace, y); };
  });
}

void add_cast(Cases& cases, std::size_t count, bool large) {
  const double bytes = static_cast<double>(count) * 6;
  cases.add("cast f32 to bf16", fmt::format("{}", count), DType::bf16, bytes, large,
            [=](Arrays& arrays, Device) -> Computation {
              const Tensor x = arrays.uniform({count});
              return [x, y = arrays.output({count}, DType::bf16)](StreamView stream) {
                kernels::cast(stream, x, y);
              };
            });
}

void add_images(Cases& cases, Shape shape, DType dtype, bool large) {
  const double images = static_cast<double>(shape.elements() * size_of(dtype));
  const kernels::Pool2dShape pool{shape[0], shape[1], shape[2], shape[3]};
  const double pooled = images / 4, positions = static_cast<double>(pool.output().elements());
  cases.add("max_pool2d forward", shape.to_string(), dtype, images + pooled + positions, large,
            [=](Arrays& arrays, Device) -> Computation {
              const Tensor x = arrays.uniform(pool.input(), dtype), y = arrays.output(pool.output(), dtype);
              return [=, argmax = arrays.output(pool.output(), DType::u8)](StreamView stream) {
                kernels::max_pool2d_forward(stream, pool, x, y, argmax);
              };
            });
  cases.add("max_pool2d backward", shape.to_string(), dtype, images + pooled + positions, large,
            [=](Arrays& arrays, Device) -> Computation {
              const Tensor dy = arrays.uniform(pool.output(), dtype);
              const Tensor argmax = arrays.integers(pool.output(), DType::u8, 4);
              return [=, dx = arrays.output(pool.input(), dtype)](StreamView stream) {
                kernels::max_pool2d_backward(stream, pool, dy, argmax, Tensor(), dx);
              };
            });
  const Shape rows{shape[0] * shape[1] * shape[2], shape[3]}, channels{shape[3]};
  // Forward reads the images for the moments and to normalise; backward both operands for the sums and again.
  cases.add("batch_norm forward", shape.to_string(), dtype, 3 * images, large,
            [=](Arrays& arrays, Device device) -> Computation {
              const Tensor x = arrays.uniform(rows, dtype), scale = arrays.uniform(channels),
                           shift = arrays.uniform(channels), y = arrays.output(rows, dtype),
                           mean = arrays.output(channels), inverse_std = arrays.output(channels);
              void* const workspace =
                  arrays.workspace(kernels::batch_norm_workspace_bytes(device, rows[0], rows[1]));
              return [=, variance = arrays.output(channels)](StreamView stream) {
                kernels::batch_norm_forward(stream, x, scale, shift, 1e-5f, workspace, y, mean, inverse_std,
                                            variance);
              };
            });
  cases.add("batch_norm backward", shape.to_string(), dtype, 5 * images, large,
            [=](Arrays& arrays, Device device) -> Computation {
              const Tensor dy = arrays.uniform(rows, dtype), x = arrays.uniform(rows, dtype),
                           scale = arrays.uniform(channels), mean = arrays.uniform(channels),
                           inverse_std = arrays.uniform(channels, DType::f32, 1, 2),
                           dx = arrays.output(rows, dtype), dscale = arrays.output(channels);
              void* const workspace =
                  arrays.workspace(kernels::batch_norm_workspace_bytes(device, rows[0], rows[1]));
              return [=, dshift = arrays.output(channels)](StreamView stream) {
                kernels::batch_norm_backward(stream, dy, x, scale, mean, inverse_std, workspace, dx, dscale,
                                             dshift);
              };
            });
  cases.add("transpose_inner", shape.to_string(), dtype, 2 * images, large,
            [=](Arrays& arrays, Device) -> Computation {
              const std::size_t pixels = shape[1] * shape[2];
              const Tensor x = arrays.uniform({shape[0], pixels, shape[3]}, dtype);
              return [x, y = arrays.output({shape[0], shape[3], pixels}, dtype)](StreamView stream) {
                kernels::transpose_inner(stream, x, y);
              };
            });
}

void add_augment(Cases& cases, Shape shape, DType dtype, bool large) {
  const double bytes = static_cast<double>(shape.elements() * (1 + size_of(dtype)));
  cases.add("augment", shape.to_string(), dtype, bytes, large,
            [=](Arrays& arrays, Device device) -> Computation {
              kernels::AugmentOptions options;
              options.crop_padding = 4;
              options.horizontal_flip = true;
              options.values = step_values(arrays, device);
              const Tensor x = arrays.integers(shape, DType::u8, 256);
              const Tensor index = arrays.integers({shape[0]}, DType::i64, 60000);
              return [=, y = arrays.output(shape, dtype)](StreamView stream) {
                kernels::augment(stream, options, x, index, y);
              };
            });
}

void add_loss(Cases& cases, std::size_t rows, std::size_t classes, DType dtype, bool large) {
  const double bytes = 2 * static_cast<double>(rows * classes * size_of(dtype));
  cases.add("softmax_cross_entropy", fmt::format("[{}, {}]", rows, classes), dtype, bytes, large,
            [=](Arrays& arrays, Device device) -> Computation {
              const Tensor logits = arrays.uniform({rows, classes}, dtype, -5, 5);
              const Tensor labels = arrays.integers({rows}, DType::i32, static_cast<std::uint32_t>(classes));
              const Tensor dlogits = arrays.output({rows, classes}, dtype);
              void* const workspace =
                  arrays.workspace(kernels::softmax_cross_entropy_workspace_bytes(device, rows));
              return [=, statistics = arrays.output({3})](StreamView stream) {
                kernels::softmax_cross_entropy(stream, logits, labels, 0.1f, workspace, dlogits, statistics);
              };
            });
}

/// Statistics of a batch whose gradients are averaged over one sample.
Tensor unit_statistics(Arrays& arrays) { return arrays.uniform({3}, DType::f32, 1, 1); }

void add_optimizers(Cases& cases, std::size_t count, bool rounds, bool large) {
  const DType dtype = rounds ? DType::bf16 : DType::f32;
  const double array = static_cast<double>(count) * 4, rounded_bytes = rounds ? array / 2 : 0;
  const auto rounded = [=](Arrays& arrays) {
    return rounds ? arrays.output({count}, DType::bf16) : Tensor();
  };
  cases.add("sgd with momentum", fmt::format("{}", count), dtype, 5 * array + rounded_bytes, large,
            [=](Arrays& arrays, Device device) -> Computation {
              const Tensor statistics = unit_statistics(arrays), gradient = arrays.uniform({count}),
                           weights = arrays.uniform({count}), momentum = arrays.uniform({count});
              const StepValues* const values = step_values(arrays, device);
              return [=, copy = rounded(arrays)](StreamView stream) {
                kernels::sgd_update(stream, {.momentum = 0.9f}, values,
                                    {.statistics = statistics.as<float>()}, gradient, weights, momentum,
                                    copy);
              };
            });
  cases.add("adamw", fmt::format("{}", count), dtype, 7 * array + rounded_bytes, large,
            [=](Arrays& arrays, Device device) -> Computation {
              const Tensor statistics = unit_statistics(arrays), gradient = arrays.uniform({count}),
                           weights = arrays.uniform({count}), first = arrays.uniform({count}),
                           second = arrays.uniform({count}, DType::f32, 0, 1);
              const StepValues* const values = step_values(arrays, device);
              return [=, copy = rounded(arrays)](StreamView stream) {
                kernels::adamw_update(stream, {}, values, {.statistics = statistics.as<float>()}, gradient,
                                      weights, first, second, copy);
              };
            });
}

}  // namespace

std::vector<KernelCase> memory_bound_cases(Device device) {
  Cases cases(device);
  constexpr std::size_t kCnnParameters = 421642, kMillions = std::size_t{64} << 20;
  std::vector<DType> dtypes{DType::f32};
  if (device.is_cuda()) dtypes.push_back(DType::bf16);
  for (const DType dtype : dtypes) {
    for (const std::size_t batch : {64, 256}) {
      add_elementwise(cases, batch * 28 * 28 * 32, dtype, false);
      add_images(cases, {batch, 28, 28, 32}, dtype, false);
      add_images(cases, {batch, 14, 14, 64}, dtype, false);
      add_augment(cases, {batch, 28, 28, 1}, dtype, false);
      add_loss(cases, batch, 10, dtype, false);
    }
    add_elementwise(cases, kMillions, dtype, true);
    add_images(cases, {256, 56, 56, 64}, dtype, true);
    add_augment(cases, {4096, 32, 32, 3}, dtype, true);
    add_loss(cases, 16384, 1000, dtype, true);
    add_optimizers(cases, kCnnParameters, dtype == DType::bf16, false);
    add_optimizers(cases, kMillions, dtype == DType::bf16, true);
  }
  if (device.is_cuda()) add_cast(cases, kMillions, true);
  return cases.take();
}

}  // namespace annulus::bench
