#include <algorithm>
#include <cstring>

#include "kernels/check.h"
#include "kernels/linear.h"
#include "kernels/onednn_cpu.h"

namespace annulus::kernels {

std::unique_ptr<Linear> make_linear(Device device, const LinearShape& shape) {
  require<ShapeError>(shape.in_features > 0 && shape.out_features > 0,
                      "linear: features must not be empty, but are {} to {}", shape.in_features,
                      shape.out_features);
#if ANNULUS_HAS_CUDA
  if (device.is_cuda()) return cuda::make_linear(device, shape);
#endif
  return cpu::make_linear(device, shape);
}

namespace cpu {
namespace {

// Row-major c[m][n] = op(a) op(b).
void multiply(char transpose_a, char transpose_b, std::size_t m, std::size_t n, std::size_t k,
              const Tensor& a, std::size_t a_stride, const Tensor& b, std::size_t b_stride, const Tensor& c,
              float keep) {
  dnnl::sgemm(transpose_a, transpose_b, dim(m), dim(n), dim(k), 1.0f, a.as<float>(), dim(a_stride),
              b.as<float>(), dim(b_stride), keep, c.as<float>(), dim(n));
}

class OnednnLinear final : public Linear {
 public:
  explicit OnednnLinear(const LinearShape& shape) : shape_(shape) {}

  void forward(StreamView stream, const Tensor& x, const Tensor& weights, const Tensor& bias,
               const Tensor& y) override {
    check("linear forward", stream, {x, "x"}, {weights, "weights"}, {bias, "bias"}, {y, "y"});
    const std::size_t batch = shape_.batch, in = shape_.in_features, out = shape_.out_features;
    if (batch == 0) return;
    float* target = y.as<float>();
    if (shape_.bias)
      for (std::size_t row = 0; row < batch; ++row) std::copy_n(bias.as<float>(), out, target + row * out);
    multiply('N', 'T', batch, out, in, x, in, weights, in, y, shape_.bias ? 1.0f : 0.0f);
    if (shape_.relu)
      for (std::size_t i = 0; i < batch * out; ++i) target[i] = target[i] < 0 ? 0 : target[i];
  }

  void backward_data(StreamView stream, const Tensor& dy, const Tensor& weights, const Tensor& dx) override {
    check("linear backward_data", stream, {dx, "dx"}, {weights, "weights"}, {Tensor(), nullptr}, {dy, "dy"});
    const std::size_t batch = shape_.batch, in = shape_.in_features, out = shape_.out_features;
    if (batch == 0) return;
    multiply('N', 'N', batch, in, out, dy, out, weights, in, dx, 0);
  }

  void backward_weights(StreamView stream, const Tensor& x, const Tensor& dy, const Tensor& dweights,
                        const Tensor& dbias) override {
    check("linear backward_weights", stream, {x, "x"}, {dweights, "dweights"}, {dbias, "dbias"}, {dy, "dy"});
    const std::size_t batch = shape_.batch, in = shape_.in_features, out = shape_.out_features;
    if (shape_.bias) {
      float* sums = dbias.as<float>();
      std::fill_n(sums, out, 0.0f);
      for (std::size_t row = 0; row < batch; ++row)
        for (std::size_t i = 0; i < out; ++i) sums[i] += dy.as<float>()[row * out + i];
    }
    if (batch == 0)
      zero_bytes(stream, dweights.data(), dweights.bytes());
    else
      multiply('T', 'N', out, in, batch, dy, out, x, in, dweights, 0);
  }

 private:
  struct Argument {
    const Tensor& tensor;
    const char* name;
  };

  void check(const char* op, StreamView stream, const Argument& x, const Argument& weights,
             const Argument& bias, const Argument& y) const {
    const Device device = stream.device();
    check_tensor(op, x.name, x.tensor, {shape_.batch, shape_.in_features}, device);
    check_tensor(op, weights.name, weights.tensor, {shape_.out_features, shape_.in_features}, device);
    check_tensor(op, y.name, y.tensor, {shape_.batch, shape_.out_features}, device);
    if (shape_.bias && bias.name != nullptr)
      check_tensor(op, bias.name, bias.tensor, {shape_.out_features}, device);
  }

  const LinearShape shape_;
};

}  // namespace

std::unique_ptr<Linear> make_linear(Device, const LinearShape& shape) {
  return std::make_unique<OnednnLinear>(shape);
}

}  // namespace cpu
}  // namespace annulus::kernels
