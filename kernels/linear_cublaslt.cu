// Fully connected layer on cuBLASLt. Its matrices are column-major, so a row-major [r, c] is its c x r matrix
// with leading dimension c. With x [b, i], W [o, i], y [b, o]:
//   forward           y^T  = W x^T     D is o x b, A = W transposed,  B = x,             bias along D's rows
//   backward_data     dx^T = W^T dy^T  D is i x b, A = W,             B = dy
//   backward_weights  dW^T = x^T dy    D is i x o, A = x,             B = dy transposed, bias gradient from B
//
// ReLU is a pass of its own: cuBLASLt's epilogue makes NaN 0, which would hide a run that has diverged. So is
// the mask of backward_data, for which cuBLASLt wants a bit mask that its own ReLU epilogue wrote.
#include <cublasLt.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/buffer.h"
#include "core/base/half.h"
#include "kernels/activation.h"
#include "kernels/device/column_sums.h"
#include "kernels/linear.h"

namespace annulus::kernels::cuda {
namespace {

void check_cublas(cublasStatus_t status, const char* call) {
  require<DeviceError>(status == CUBLAS_STATUS_SUCCESS, "{} failed: {}", call, cublasLtGetStatusName(status));
}

#define ANNULUS_CUBLAS_CHECK(call) check_cublas((call), #call)

// Owns a handle of the library.
template <class Handle, cublasStatus_t (*destroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_ != nullptr) (void)destroy(handle_);
  }
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Handle* out() { return &handle_; }
  operator Handle() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};

using Context = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t type_of(DType dtype) { return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

Layout layout(DType dtype, std::size_t rows, std::size_t columns) {
  Layout result;
  ANNULUS_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(result.out(), type_of(dtype), rows, columns,
                                                  static_cast<std::int64_t>(rows)));
  return result;
}

bool is_aligned(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

// An operand as it lies in memory: `columns` runs of `rows` elements.
struct Operand {
  DType dtype;
  std::size_t rows, columns;
  bool transposed = false;
};

// D = op(A) op(B), with one algorithm for operands on 16-byte boundaries and one for all others.
class Product {
 public:
  // Empty if the library has no such product.
  static std::optional<Product> plan(cublasLtHandle_t context, Precision precision, const Operand& a,
                                     const Operand& b, const Operand& d, cublasLtEpilogue_t epilogue) {
    Product product(precision, a, b, d, epilogue);
    if (!product.choose(context, product.aligned_, kAlignment) ||
        !product.choose(context, product.unaligned_, size_of(a.dtype)))
      return std::nullopt;
    return product;
  }

  std::size_t workspace_bytes() const { return std::max(aligned_.workspaceSize, unaligned_.workspaceSize); }

  void run(StreamView stream, cublasLtHandle_t context, const Tensor& a, const Tensor& b, const Tensor& bias,
           const Tensor& d, const Buffer& workspace) {
    const DeviceGuard guard(stream.device());
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.data());
    const bool aligned = is_aligned(a.data(), kAlignment) && is_aligned(b.data(), kAlignment) &&
                         is_aligned(bias.data(), kAlignment) && is_aligned(d.data(), kAlignment);
    const float one = 1, zero = 0;
    ANNULUS_CUBLAS_CHECK(cublasLtMatmul(context, description_, &one, a.data(), a_, b.data(), b_, &zero,
                                        d.data(), d_, d.data(), d_,
                                        aligned ? &aligned_.algo : &unaligned_.algo, workspace.data(),
                                        workspace.bytes(), static_cast<cudaStream_t>(stream.handle())));
  }

 private:
  static constexpr std::size_t kAlignment = 16;

  Product(Precision precision, const Operand& a, const Operand& b, const Operand& d,
          cublasLtEpilogue_t epilogue)
      : a_(layout(a.dtype, a.rows, a.columns)),
        b_(layout(b.dtype, b.rows, b.columns)),
        d_(layout(d.dtype, d.rows, d.columns)) {
    const auto compute = precision == Precision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    ANNULUS_CUBLAS_CHECK(cublasLtMatmulDescCreate(description_.out(), compute, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N});
    set(CUBLASLT_MATMUL_DESC_TRANSB, std::int32_t{b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N});
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(epilogue));
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    ANNULUS_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(description_, attribute, &value, sizeof value));
  }

  // The library's first choice for operands at multiples of `alignment` bytes. Sums that are split over
  // blocks go through the workspace in f32: the other schemes round partial sums, or add them in an order
  // that the manual does not promise.
  bool choose(cublasLtHandle_t context, cublasLtMatmulHeuristicResult_t& result, std::size_t alignment) {
    constexpr std::uint64_t kMostWorkspaceBytes = std::uint64_t{32} << 20;  // the manual's advice for sm_90
    Preference preference;
    ANNULUS_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(preference.out()));
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      ANNULUS_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMostWorkspaceBytes);
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(attribute, static_cast<std::uint32_t>(alignment));
    // The library takes the bias's alignment from a pointer, which it does not follow here.
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<void*>(alignment));
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(context, description_, a_, b_, d_, d_, preference, 1, &result, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
    check_cublas(status, "cublasLtMatmulAlgoGetHeuristic");
    return found == 1 && result.state == CUBLAS_STATUS_SUCCESS;
  }

  Description description_;
  Layout a_, b_, d_;
  cublasLtMatmulHeuristicResult_t aligned_{}, unaligned_{};
};

class CublasLtLinear final : public Linear {
 public:
  // Null if the library has no algorithm for one of the three products.
  static std::unique_ptr<CublasLtLinear> plan(Device device, const LinearShape& shape) {
    const DeviceGuard guard(device);
    auto linear = std::unique_ptr<CublasLtLinear>(new CublasLtLinear(shape));
    ANNULUS_CUBLAS_CHECK(cublasLtCreate(linear->context_.out()));
    return linear->plan_products(device) ? std::move(linear) : nullptr;
  }

  void forward(StreamView stream, const Tensor& x, const Tensor& weights, const Tensor& bias,
               const Tensor& y) override {
    if (shape_.batch == 0) return;
    forward_->run(stream, context_, weights, x, shape_.bias ? bias : Tensor(), y, workspace_);
    if (shape_.relu) relu_forward(stream, y, y);
  }

  void backward_data(StreamView stream, const Tensor& dy, const Tensor& weights, const Tensor& relu_output,
                     const Tensor& dx) override {
    if (shape_.batch == 0) return;
    data_->run(stream, context_, weights, dy, Tensor(), dx, workspace_);
    if (!relu_output.empty()) relu_backward(stream, dx, relu_output, dx);
  }

  void backward_weights(StreamView stream, const Tensor& x, const Tensor& dy, const Tensor& dweights,
                        const Tensor& dbias) override {
    if (shape_.batch == 0) {
      zero_bytes(stream, dweights.data(), dweights.bytes());
      if (!dbias.empty()) zero_bytes(stream, dbias.data(), dbias.bytes());
      return;
    }
    if (!dbias.empty() && weights_and_bias_) {
      weights_and_bias_->run(stream, context_, x, dy, dbias, dweights, workspace_);
      return;
    }
    weights_->run(stream, context_, x, dy, Tensor(), dweights, workspace_);
    if (dbias.empty()) return;
    if (shape_.precision == Precision::bf16)
      add_columns(stream, dy.as<BFloat16>(), dbias);
    else
      add_columns(stream, dy.as<float>(), dbias);
  }

 private:
  explicit CublasLtLinear(const LinearShape& shape) : shape_(shape) {}

  bool plan_products(Device device) {
    const std::size_t batch = shape_.batch, in = shape_.in_features, out = shape_.out_features;
    if (batch == 0) return true;
    const DType dtype = activation_dtype(shape_.precision);
    const Operand x{dtype, in, batch}, y{dtype, out, batch}, dweights{DType::f32, in, out};
    const Operand weights{dtype, in, out}, transposed_weights{dtype, in, out, true},
        transposed_y{dtype, out, batch, true};
    const auto plan = [&](const Operand& a, const Operand& b, const Operand& d, cublasLtEpilogue_t epilogue) {
      return Product::plan(context_, shape_.precision, a, b, d, epilogue);
    };
    forward_ =
        plan(transposed_weights, x, y, shape_.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
    data_ = plan(weights, y, x, CUBLASLT_EPILOGUE_DEFAULT);
    weights_ = plan(x, transposed_y, dweights, CUBLASLT_EPILOGUE_DEFAULT);
    if (!forward_ || !data_ || !weights_) return false;
    // The manual gives a bias gradient the type of D, f32 here, and does not list the types that it can be
    // taken from: where the library refuses, the columns of dy are added in a pass of their own. So they are
    // in tf32, because it does not say either whether the rounded operand is summed.
    if (shape_.bias && shape_.precision != Precision::tf32)
      weights_and_bias_ = plan(x, transposed_y, dweights, CUBLASLT_EPILOGUE_BGRADB);
    std::size_t bytes = shape_.bias ? column_sums_chunks(batch) * out * sizeof(float) : 0;
    for (const auto* const product : {&forward_, &data_, &weights_, &weights_and_bias_})
      if (*product) bytes = std::max(bytes, (*product)->workspace_bytes());
    workspace_ = Buffer(device, bytes);
    return true;
  }

  template <class T>
  void add_columns(StreamView stream, const T* dy, const Tensor& dbias) {
    column_sums(stream, shape_.batch, shape_.out_features, dy, static_cast<float*>(workspace_.data()),
                dbias.as<float>());
  }

  LinearShape shape_;
  Context context_;
  std::optional<Product> forward_, data_, weights_, weights_and_bias_;
  Buffer workspace_;
};

}  // namespace

std::unique_ptr<Linear> make_cublaslt_linear(Device device, const LinearShape& shape) {
  auto linear = CublasLtLinear::plan(device, shape);
  require<DeviceError>(
      linear != nullptr,
      "{}: cuBLASLt has no algorithm for a linear layer of {} to {} features at batch {} in {}; use "
      "another batch size or precision",
      device.to_string(), shape.in_features, shape.out_features, shape.batch, name_of(shape.precision));
  return linear;
}

std::unique_ptr<Linear> make_linear(Device device, const LinearShape& shape) {
  if (auto linear = CublasLtLinear::plan(device, shape)) return linear;
  return make_tiled_linear(device, shape);
}

}  // namespace annulus::kernels::cuda
