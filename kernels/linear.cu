// Fully connected layer on the hand-written matrix product. With x [b, i], W [o, i], y [b, o]:
//   forward           C = y,  m = b, n = o, k = i
//   backward_data     C = dx, m = b, n = i, k = o
//   backward_weights  C = dW, m = o, n = i, k = b
#include "core/base/buffer.h"
#include "kernels/device/column_sums.h"
#include "kernels/device/gemm.h"
#include "kernels/device/matrix_operand.h"
#include "kernels/linear.h"

namespace annulus::kernels::cuda {
namespace {

template <Precision precision>
class TiledLinear final : public Linear {
 public:
  TiledLinear(Device device, const LinearShape& shape)
      : shape_(shape),
        forward_({shape.batch, shape.out_features, shape.in_features}, precision),
        data_({shape.batch, shape.in_features, shape.out_features}, precision),
        weights_({shape.out_features, shape.in_features, shape.batch}, precision),
        workspace_(device,
                   sizeof(float) * std::max({forward_.workspace_elements(), data_.workspace_elements(),
                                             weights_.workspace_elements(),
                                             column_sums_chunks(shape.batch) * shape.out_features})) {}

  void forward(StreamView stream, const Tensor& x, const Tensor& weights, const Tensor& bias,
               const Tensor& y) override {
    const MatrixOutput<T> output(y.as<T>(), shape_.batch, shape_.out_features,
                                 shape_.bias ? bias.as<T>() : nullptr, shape_.relu);
    product<true, true>(stream, forward_, x, shape_.in_features, weights, shape_.in_features, output);
  }

  void backward_data(StreamView stream, const Tensor& dy, const Tensor& weights, const Tensor& relu_output,
                     const Tensor& dx) override {
    const MatrixOutput<T> output(dx.as<T>(), shape_.batch, shape_.in_features, nullptr, false,
                                 relu_output.empty() ? nullptr : relu_output.as<T>());
    product<true, false>(stream, data_, dy, shape_.out_features, weights, shape_.in_features, output);
  }

  void backward_weights(StreamView stream, const Tensor& x, const Tensor& dy, const Tensor& dweights,
                        const Tensor& dbias) override {
    const MatrixOutput<float> output(dweights.as<float>(), shape_.out_features, shape_.in_features);
    product<false, false>(stream, weights_, dy, shape_.out_features, x, shape_.in_features, output);
    if (!dbias.empty())
      column_sums(stream, shape_.batch, shape_.out_features, dy.as<T>(), workspace(), dbias.as<float>());
  }

 private:
  using T = ElementOf<precision>;

  template <bool AAlongK, bool BAlongK, class Output>
  void product(StreamView stream, const GemmPlan& plan, const Tensor& a, std::size_t pitch_a, const Tensor& b,
               std::size_t pitch_b, const Output& output) {
    constexpr int kPack = 16 / sizeof(T);
    if (pitch_a % kPack == 0 && pitch_b % kPack == 0 && is_pack_aligned(a.data()) &&
        is_pack_aligned(b.data()))
      product<AAlongK, BAlongK, kPack>(stream, plan, a, pitch_a, b, pitch_b, output);
    else
      product<AAlongK, BAlongK, 1>(stream, plan, a, pitch_a, b, pitch_b, output);
  }

  template <bool AAlongK, bool BAlongK, int Width, class Output>
  void product(StreamView stream, const GemmPlan& plan, const Tensor& a, std::size_t pitch_a, const Tensor& b,
               std::size_t pitch_b, const Output& output) {
    gemm<precision>(stream, plan, MatrixOperand<T, AAlongK, Width>{a.as<T>(), plan.shape.m, pitch_a},
                    MatrixOperand<T, BAlongK, Width>{b.as<T>(), plan.shape.n, pitch_b}, output, workspace());
  }

  float* workspace() const { return static_cast<float*>(workspace_.data()); }

  LinearShape shape_;
  GemmPlan forward_, data_, weights_;
  Buffer workspace_;
};

}  // namespace

std::unique_ptr<Linear> make_tiled_linear(Device device, const LinearShape& shape) {
  switch (shape.precision) {
    case Precision::tf32:
      return std::make_unique<TiledLinear<Precision::tf32>>(device, shape);
    case Precision::bf16:
      return std::make_unique<TiledLinear<Precision::bf16>>(device, shape);
    case Precision::f32:
      break;
  }
  return std::make_unique<TiledLinear<Precision::f32>>(device, shape);
}

}  // namespace annulus::kernels::cuda
