#include <algorithm>

#include "kernels/activation.h"
#include "kernels/check.h"
#include "kernels/linear.h"
#include "kernels/multiversion_cpu.h"
#include "kernels/onednn_cpu.h"

namespace annulus::kernels {

std::unique_ptr<Linear> make_linear(Device device, const LinearShape& shape) {
  require<ShapeError>(shape.in_features > 0 && shape.out_features > 0,
                      "linear: features must not be empty, but are {} to {}", shape.in_features,
                      shape.out_features);
#if ANNULUS_HAS_CUDA
  if (device.is_cuda()) return cuda::make_linear(device, shape);
#else
  static_cast<void>(device);
#endif
  return cpu::make_linear(device, shape);
}

namespace cpu {
namespace {

// sums[column] = sum over rows, in blocks of rows, so that the rounding error grows with the number of
// blocks and not of rows.
ANNULUS_MULTIVERSION void column_sums(std::size_t rows, std::size_t columns, const float* x, float* sums) {
  constexpr std::size_t kRows = 64, kColumns = 64;
  for (std::size_t left = 0; left < columns; left += kColumns) {
    const std::size_t width = std::min(kColumns, columns - left);
    float total[kColumns] = {};
    for (std::size_t top = 0; top < rows; top += kRows) {
      float block[kColumns] = {};
      for (std::size_t row = top; row < std::min(rows, top + kRows); ++row)
        for (std::size_t column = 0; column < width; ++column)
          block[column] += x[row * columns + left + column];
      for (std::size_t column = 0; column < width; ++column) total[column] += block[column];
    }
    std::copy_n(total, width, sums + left);
  }
}

// Three matrix products over plain row-major operands; no copy of the weights is kept.
class OnednnLinear final : public Linear {
 public:
  explicit OnednnLinear(const LinearShape& shape) : shape_(shape) {
    if (shape.batch == 0) return;
    const dnnl_dim_t batch = dim(shape.batch), in = dim(shape.in_features), out = dim(shape.out_features);
    // A transposed operand is its own memory under the other format tag.
    forward_ = product(f32_desc({batch, in}, FormatTag::ab), f32_desc({in, out}, FormatTag::ba),
                       shape.bias ? f32_desc({1, out}, FormatTag::ab) : dnnl::memory::desc(), {batch, out});
    backward_data_ =
        product(f32_desc({batch, out}, FormatTag::ab), f32_desc({out, in}, FormatTag::ab), {}, {batch, in});
    backward_weights_ =
        product(f32_desc({out, batch}, FormatTag::ba), f32_desc({batch, in}, FormatTag::ab), {}, {out, in});
  }

  void forward(StreamView stream, const Tensor& x, const Tensor& weights, const Tensor& bias,
               const Tensor& y) override {
    check("linear forward", {x, "x"}, {weights, "weights"}, {bias, "bias"}, {y, "y"});
    if (shape_.batch == 0) return;
    if (shape_.bias) forward_.set(DNNL_ARG_BIAS, bias.data());
    multiply(forward_, x, weights, y);
    // Not a post-op: oneDNN's ReLU turns NaN into 0, which would hide a run that has diverged.
    if (shape_.relu) relu_forward(stream, y, y);
  }

  void backward_data(StreamView stream, const Tensor& dy, const Tensor& weights, const Tensor& relu_output,
                     const Tensor& dx) override {
    check("linear backward_data", {dx, "dx"}, {weights, "weights"}, {Tensor(), nullptr}, {dy, "dy"});
    if (shape_.batch == 0) return;
    multiply(backward_data_, dy, weights, dx);
    if (!relu_output.empty()) relu_backward(stream, dx, relu_output, dx);
  }

  void backward_weights(StreamView stream, const Tensor& x, const Tensor& dy, const Tensor& dweights,
                        const Tensor& dbias) override {
    check("linear backward_weights", {x, "x"}, {dweights, "dweights"}, {dbias, "dbias"}, {dy, "dy"});
    if (shape_.batch > 0)
      multiply(backward_weights_, dy, x, dweights);
    else
      zero_bytes(stream, dweights.data(), dweights.bytes());
    if (shape_.bias) column_sums(shape_.batch, shape_.out_features, dy.as<float>(), dbias.as<float>());
  }

 private:
  struct Argument {
    const Tensor& tensor;
    const char* name;
  };

  void check(const char* op, const Argument& x, const Argument& weights, const Argument& bias,
             const Argument& y) const {
    const Device device = Device::cpu();
    check_tensor(op, x.name, x.tensor, {shape_.batch, shape_.in_features}, device);
    check_tensor(op, weights.name, weights.tensor, {shape_.out_features, shape_.in_features}, device);
    check_tensor(op, y.name, y.tensor, {shape_.batch, shape_.out_features}, device);
    if (shape_.bias && bias.name != nullptr)
      check_tensor(op, bias.name, bias.tensor, {shape_.out_features}, device);
  }

  OnednnPrimitive product(const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                          const dnnl::memory::desc& bias, const Dims& c_dims) {
    const auto c = f32_desc(c_dims, FormatTag::ab);
    const dnnl::matmul::primitive_desc description({a, b, bias, c}, user_scratchpad(), context_.engine);
    return OnednnPrimitive::plan<dnnl::matmul>(
        context_, description,
        {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_BIAS, bias}, {DNNL_ARG_DST, c}});
  }

  void multiply(OnednnPrimitive& product, const Tensor& a, const Tensor& b, const Tensor& c) {
    product.set(DNNL_ARG_SRC, a.data());
    product.set(DNNL_ARG_WEIGHTS, b.data());
    product.set(DNNL_ARG_DST, c.data());
    product.run(context_);
  }

  const LinearShape shape_;
  OnednnContext context_;
  OnednnPrimitive forward_, backward_data_, backward_weights_;
};

}  // namespace

std::unique_ptr<Linear> make_linear(Device, const LinearShape& shape) {
  check_precision("linear", shape.precision);
  try {
    return std::make_unique<OnednnLinear>(shape);
  } catch (const dnnl::error& error) {
    fail<DeviceError>("cpu: oneDNN cannot plan a linear layer of {} to {} features at batch {}: {}",
                      shape.in_features, shape.out_features, shape.batch, error.what());
  }
}

}  // namespace cpu
}  // namespace annulus::kernels
