// Fully connected layer on the tiled matrix product. With x [b, i], W [o, i], y [b, o]:
//   forward           C = y,  m = b, n = o, k = i
//   backward_data     C = dx, m = b, n = i, k = o
//   backward_weights  C = dW, m = o, n = i, k = b
#include "core/base/buffer.h"
#include "kernels/device/column_sums.h"
#include "kernels/device/matrix_operand.h"
#include "kernels/linear.h"

namespace annulus::kernels::cuda {
namespace {

class TiledLinear final : public Linear {
 public:
  TiledLinear(Device device, const LinearShape& shape)
      : shape_(shape),
        forward_({shape.batch, shape.out_features, shape.in_features}),
        data_({shape.batch, shape.in_features, shape.out_features}),
        weights_({shape.out_features, shape.in_features, shape.batch}),
        workspace_(device,
                   sizeof(float) * std::max({forward_.workspace_elements(), data_.workspace_elements(),
                                             weights_.workspace_elements(),
                                             column_sums_chunks(shape.batch) * shape.out_features})) {}

  void forward(StreamView stream, const Tensor& x, const Tensor& weights, const Tensor& bias,
               const Tensor& y) override {
    const MatrixOutput output{y.as<float>(),       shape_.batch,
                              shape_.out_features, shape_.bias ? bias.as<float>() : nullptr,
                              shape_.relu,         nullptr};
    if (is_packed(shape_.in_features, x, weights))
      product<true, true, 4>(stream, forward_, x, weights, shape_.in_features, shape_.in_features, output);
    else
      product<true, true, 1>(stream, forward_, x, weights, shape_.in_features, shape_.in_features, output);
  }

  void backward_data(StreamView stream, const Tensor& dy, const Tensor& weights, const Tensor& relu_output,
                     const Tensor& dx) override {
    const MatrixOutput output{dx.as<float>(), shape_.batch, shape_.in_features,
                              nullptr,        false,        relu_output.as<float>()};
    if (is_packed(shape_.in_features, weights, dy) && shape_.out_features % kPackWidth == 0)
      product<true, false, 4>(stream, data_, dy, weights, shape_.out_features, shape_.in_features, output);
    else
      product<true, false, 1>(stream, data_, dy, weights, shape_.out_features, shape_.in_features, output);
  }

  void backward_weights(StreamView stream, const Tensor& x, const Tensor& dy, const Tensor& dweights,
                        const Tensor& dbias) override {
    const MatrixOutput output{
        dweights.as<float>(), shape_.out_features, shape_.in_features, nullptr, false, nullptr};
    if (is_packed(shape_.in_features, x, dy) && shape_.out_features % kPackWidth == 0)
      product<false, false, 4>(stream, weights_, dy, x, shape_.out_features, shape_.in_features, output);
    else
      product<false, false, 1>(stream, weights_, dy, x, shape_.out_features, shape_.in_features, output);
    if (!dbias.empty())
      column_sums(stream, shape_.batch, shape_.out_features, dy.as<float>(), workspace(), dbias.as<float>());
  }

 private:
  static bool is_packed(std::size_t pitch, const Tensor& a, const Tensor& b) {
    return pitch % kPackWidth == 0 && is_pack_aligned(a.data()) && is_pack_aligned(b.data());
  }

  template <bool AAlongK, bool BAlongK, int Width>
  void product(StreamView stream, const GemmPlan& plan, const Tensor& a, const Tensor& b, std::size_t pitch_a,
               std::size_t pitch_b, const MatrixOutput& output) {
    gemm(stream, plan, MatrixOperand<AAlongK, Width>{a.as<float>(), plan.shape.m, pitch_a},
         MatrixOperand<BAlongK, Width>{b.as<float>(), plan.shape.n, pitch_b}, output, workspace());
  }

  float* workspace() const { return static_cast<float*>(workspace_.data()); }

  LinearShape shape_;
  GemmPlan forward_, data_, weights_;
  Buffer workspace_;
};

}  // namespace

std::unique_ptr<Linear> make_tiled_linear(Device device, const LinearShape& shape) {
  return std::make_unique<TiledLinear>(device, shape);
}

std::unique_ptr<Linear> make_linear(Device device, const LinearShape& shape) {
  return make_tiled_linear(device, shape);
}

}  // namespace annulus::kernels::cuda
