// The emulated cuBLASLt: products and epilogues equal their definition, and faulty calls are refused or
// reported.
#include <cublasLt.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "core/base/half.h"
#include "tests/virtual_gpu/virtual_gpu.h"

namespace {

using annulus::BFloat16;

constexpr std::uint64_t kRows = 3, kColumns = 2, kDepth = 5;  // D is 3 x 2
constexpr std::uint64_t kWorkspaceBytes = 4096;

template <class T>
constexpr cudaDataType_t kType = sizeof(T) == 2 ? CUDA_R_16BF : CUDA_R_32F;

// One product of column-major matrices without gaps.
class VirtualGpuCublasLt : public ::testing::Test {
 protected:
  VirtualGpuCublasLt() {
    cudaSetDevice(0);
    virtual_gpu::set_seed(1);
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    cublasLtCreate(&handle_);
    cublasLtMatmulPreferenceCreate(&preference_);
    set_preference(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    set_preference(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                   std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    cudaMalloc(&workspace_, kWorkspaceBytes);
  }

  ~VirtualGpuCublasLt() override {
    for (void* array : arrays_) cudaFree(array);
    cudaFree(workspace_);
    for (const auto layout : {a_layout_, b_layout_, d_layout_})
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    if (desc_ != nullptr) cublasLtMatmulDescDestroy(desc_);
    cublasLtMatmulPreferenceDestroy(preference_);
    cublasLtDestroy(handle_);
    cudaStreamDestroy(stream_);
  }

  template <class T>
  void set_preference(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof value),
              CUBLAS_STATUS_SUCCESS);
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    EXPECT_EQ(cublasLtMatmulDescSetAttribute(desc_, attribute, &value, sizeof value), CUBLAS_STATUS_SUCCESS);
  }

  template <class T>
  T* array(const std::vector<float>& values) {
    std::vector<T> rounded;
    for (const float value : values) rounded.push_back(annulus::from_float<T>(value));
    T* const data = array<T>(values.size());
    cudaMemcpyAsync(data, rounded.data(), rounded.size() * sizeof(T), cudaMemcpyDefault, stream_);
    return data;
  }

  template <class T>
  T* array(std::size_t elements) {
    void* data = nullptr;
    cudaMalloc(&data, elements * sizeof(T));
    arrays_.push_back(data);
    return static_cast<T*>(data);
  }

  template <class T>
  std::vector<float> values(const T* data, std::size_t elements) {
    std::vector<T> host(elements);
    cudaMemcpyAsync(host.data(), data, elements * sizeof(T), cudaMemcpyDefault, stream_);
    std::vector<float> result;
    for (const T value : host) result.push_back(annulus::to_float(value));
    return result;
  }

  // The problem of the fixture in these types, as if A and B were transposed or not.
  template <class Input, class Output>
  void describe(bool transpose_a = false, bool transpose_b = false,
                cublasComputeType_t compute = CUBLAS_COMPUTE_32F) {
    cublasLtMatmulDescCreate(&desc_, compute, CUDA_R_32F);
    set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N});
    set(CUBLASLT_MATMUL_DESC_TRANSB, std::int32_t{transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N});
    const auto layout = [](cublasLtMatrixLayout_t* made, cudaDataType_t type, std::uint64_t rows,
                           std::uint64_t columns) {
      cublasLtMatrixLayoutCreate(made, type, rows, columns, static_cast<std::int64_t>(rows));
    };
    layout(&a_layout_, kType<Input>, transpose_a ? kDepth : kRows, transpose_a ? kRows : kDepth);
    layout(&b_layout_, kType<Input>, transpose_b ? kColumns : kDepth, transpose_b ? kDepth : kColumns);
    layout(&d_layout_, kType<Output>, kRows, kColumns);
  }

  cublasStatus_t choose() {
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle_, desc_, a_layout_, b_layout_, d_layout_, d_layout_, preference_, 1, &chosen_, &found);
    EXPECT_EQ(found, status == CUBLAS_STATUS_SUCCESS ? 1 : 0);
    return status;
  }

  cublasStatus_t multiply(const void* a, const void* b, void* d,
                          std::size_t workspace_bytes = kWorkspaceBytes) {
    const float one = 1, zero = 0;
    const cublasStatus_t status =
        cublasLtMatmul(handle_, desc_, &one, a, a_layout_, b, b_layout_, &zero, d, d_layout_, d, d_layout_,
                       &chosen_.algo, workspace_, workspace_bytes, stream_);
    cudaStreamSynchronize(stream_);
    return status;
  }

  cudaStream_t stream_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_layout_ = nullptr, b_layout_ = nullptr, d_layout_ = nullptr;
  cublasLtMatmulHeuristicResult_t chosen_{};
  void* workspace_ = nullptr;
  std::vector<void*> arrays_;
};

using VirtualGpuCublasLtDeathTest = VirtualGpuCublasLt;

// Column-major values of a matrix of small integers, and of its transpose.
std::vector<float> matrix(std::size_t rows, std::size_t columns, bool transposed, int seed) {
  std::vector<float> result(rows * columns);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j)
      result[transposed ? i * columns + j : j * rows + i] =
          static_cast<float>((static_cast<int>(i * 3 + j * 5) + seed) % 7 - 3);
  return result;
}

std::vector<float> product(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> d(kRows * kColumns);
  for (std::size_t j = 0; j < kColumns; ++j)
    for (std::size_t i = 0; i < kRows; ++i)
      for (std::size_t k = 0; k < kDepth; ++k) d[j * kRows + i] += a[k * kRows + i] * b[j * kDepth + k];
  return d;
}

TEST_F(VirtualGpuCublasLt, MultipliesInEveryTransposition) {
  const std::vector<float> expected =
      product(matrix(kRows, kDepth, false, 1), matrix(kDepth, kColumns, false, 2));
  for (const bool transpose_a : {false, true})
    for (const bool transpose_b : {false, true}) {
      describe<float, float>(transpose_a, transpose_b);
      ASSERT_EQ(choose(), CUBLAS_STATUS_SUCCESS);
      const float* const a = array<float>(matrix(kRows, kDepth, transpose_a, 1));
      const float* const b = array<float>(matrix(kDepth, kColumns, transpose_b, 2));
      float* const d = array<float>(kRows * kColumns);
      EXPECT_EQ(multiply(a, b, d), CUBLAS_STATUS_SUCCESS);
      EXPECT_EQ(values(d, kRows * kColumns), expected) << transpose_a << transpose_b;
      for (const auto layout : {a_layout_, b_layout_, d_layout_}) cublasLtMatrixLayoutDestroy(layout);
      cublasLtMatmulDescDestroy(desc_);
    }
  a_layout_ = b_layout_ = d_layout_ = nullptr;
  desc_ = nullptr;
}

TEST_F(VirtualGpuCublasLt, AddsTheBiasAndMakesNanZeroInTheRelu) {
  describe<BFloat16, BFloat16>();
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t{CUBLASLT_EPILOGUE_RELU_BIAS});
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER,
      static_cast<void*>(array<BFloat16>({1, std::numeric_limits<float>::quiet_NaN(), -100})));
  ASSERT_EQ(choose(), CUBLAS_STATUS_SUCCESS);
  const auto a = matrix(kRows, kDepth, false, 1), b = matrix(kDepth, kColumns, false, 2);
  auto* const d = array<BFloat16>(kRows * kColumns);
  multiply(array<BFloat16>(a), array<BFloat16>(b), d);
  const std::vector<float> expected = product(a, b), result = values(d, kRows * kColumns);
  for (std::size_t j = 0; j < kColumns; ++j) {
    EXPECT_EQ(result[j * kRows], std::max(expected[j * kRows] + 1, 0.0f));
    EXPECT_EQ(result[j * kRows + 1], 0);
    EXPECT_EQ(result[j * kRows + 2], 0);
  }
}

TEST_F(VirtualGpuCublasLt, SumsTheOperandsForTheBiasGradient) {
  describe<BFloat16, float>();
  const auto a = matrix(kRows, kDepth, false, 1), b = matrix(kDepth, kColumns, false, 2);
  const auto* const device_a = array<BFloat16>(a);
  const auto* const device_b = array<BFloat16>(b);
  auto* const d = array<float>(kRows * kColumns);
  for (const cublasLtEpilogue_t epilogue : {CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB}) {
    const bool of_a = epilogue == CUBLASLT_EPILOGUE_BGRADA;
    const std::size_t length = of_a ? kRows : kColumns;
    auto* const gradient = array<float>(length);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t{epilogue});
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(gradient));
    ASSERT_EQ(choose(), CUBLAS_STATUS_SUCCESS);
    multiply(device_a, device_b, d);
    EXPECT_EQ(values(d, kRows * kColumns), product(a, b));
    std::vector<float> expected(length);
    for (std::size_t i = 0; i < length; ++i)
      for (std::size_t k = 0; k < kDepth; ++k) expected[i] += of_a ? a[k * kRows + i] : b[i * kDepth + k];
    EXPECT_EQ(values(gradient, length), expected);
  }
}

TEST_F(VirtualGpuCublasLt, RoundsOperandsToTf32WhereAsked) {
  describe<float, float>(false, false, CUBLAS_COMPUTE_32F_FAST_TF32);
  ASSERT_EQ(choose(), CUBLAS_STATUS_SUCCESS);
  std::vector<float> a(kRows * kDepth), b(kDepth * kColumns);
  a[0] = 1 + 0x1p-10f + 0x1p-12f;  // the last bit is beyond tf32
  b[0] = 1;
  auto* const d = array<float>(kRows * kColumns);
  multiply(array<float>(a), array<float>(b), d);
  EXPECT_EQ(values(d, 1)[0], 1 + 0x1p-10f);
}

// Whoever allows the reduction in place, whose order the library does not promise, finds other bits.
TEST_F(VirtualGpuCublasLt, TheOrderOfAReductionInPlaceVaries) {
  describe<float, float>();
  std::vector<float> a(kRows * kDepth), b(kDepth * kColumns, 1.0f);
  for (std::size_t k = 0; k < kDepth; ++k)
    a[k * kRows] = k == 0 ? 0x1p24f : k == kDepth - 1 ? -0x1p24f : 1.0f;
  const auto results = [&] {
    EXPECT_EQ(choose(), CUBLAS_STATUS_SUCCESS);
    auto* const d = array<float>(kRows * kColumns);
    std::set<float> seen;
    for (int i = 0; i < 30; ++i) {
      multiply(array<float>(a), array<float>(b), d);
      seen.insert(values(d, 1)[0]);
    }
    return seen.size();
  };
  EXPECT_EQ(results(), 1u);
  set_preference(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_MASK});
  EXPECT_GT(results(), 1u);
}

TEST_F(VirtualGpuCublasLt, RefusesWhatTheLibraryRefuses) {
  describe<float, BFloat16>();
  EXPECT_EQ(choose(), CUBLAS_STATUS_NOT_SUPPORTED) << "f32 inputs and a bf16 output";
  cublasLtMatrixLayoutDestroy(d_layout_);
  cublasLtMatrixLayoutCreate(&d_layout_, CUDA_R_32F, kRows, kColumns, kRows - 1);
  EXPECT_EQ(choose(), CUBLAS_STATUS_INVALID_VALUE) << "leading dimension";
  cublasLtMatrixLayoutDestroy(d_layout_);
  cublasLtMatrixLayoutCreate(&d_layout_, CUDA_R_32F, kRows + 1, kColumns, kRows + 1);
  EXPECT_EQ(choose(), CUBLAS_STATUS_INVALID_VALUE) << "shapes";
  cublasLtMatrixLayoutDestroy(d_layout_);
  cublasLtMatrixLayoutCreate(&d_layout_, CUDA_R_32F, kRows, kColumns, kRows);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t{CUBLASLT_EPILOGUE_BIAS});
  set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, std::int32_t{CUDA_R_16BF});
  EXPECT_EQ(choose(), CUBLAS_STATUS_NOT_SUPPORTED) << "a bias of another type than D";
  set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, std::int32_t{CUDA_R_32F});
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t{3});
  EXPECT_EQ(choose(), CUBLAS_STATUS_INVALID_VALUE) << "no such epilogue";
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t{CUBLASLT_EPILOGUE_DEFAULT});
  virtual_gpu::refuse_matmuls(virtual_gpu::RefusedMatmuls::all);
  EXPECT_EQ(choose(), CUBLAS_STATUS_NOT_SUPPORTED) << "an injected fault";
  virtual_gpu::refuse_matmuls(virtual_gpu::RefusedMatmuls::none);
  ASSERT_EQ(choose(), CUBLAS_STATUS_SUCCESS);
  const std::uint64_t wide = CUBLAS_OP_N;
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_TRANSA, &wide, sizeof wide),
            CUBLAS_STATUS_INVALID_VALUE);
  ASSERT_GT(chosen_.workspaceSize, 0u);
  const float* const a = array<float>(matrix(kRows, kDepth, false, 1));
  const float* const b = array<float>(matrix(kDepth, kColumns, false, 2));
  EXPECT_EQ(multiply(a, b, array<float>(kRows * kColumns), chosen_.workspaceSize - 1),
            CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(VirtualGpuCublasLtDeathTest, Reports) {
  describe<float, float>();
  ASSERT_EQ(choose(), CUBLAS_STATUS_SUCCESS);
  float* const a = array<float>(matrix(kRows, kDepth, false, 1));
  float* const b = array<float>(matrix(kDepth, kColumns, false, 2));
  float* const d = array<float>(kRows * kColumns);
  float on_host[32] = {};
  EXPECT_DEATH(multiply(on_host, b, d), "A is not memory of this device; it is host memory");
  EXPECT_DEATH(multiply(a, b, nullptr), "D is not memory of this device; it is null");
  EXPECT_DEATH(multiply(a + 1, b, d), "A is not aligned to the 256 bytes");
  EXPECT_DEATH(multiply(array<float>(kRows * kDepth), b, d), "read of never-written memory: A at byte 0");
  EXPECT_DEATH(multiply(array<float>(std::vector<float>(2)), b, d),
               "A of 60 bytes touches byte 8 of allocation");
  EXPECT_DEATH(multiply(a, b, a), "D overlaps A");
  EXPECT_DEATH(
      {
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t{CUBLASLT_EPILOGUE_RELU});
        multiply(a, b, d);
      },
      "the algorithm was chosen for another problem");
  EXPECT_DEATH(
      {
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t{CUBLASLT_EPILOGUE_BGRADB});
        choose();
        multiply(a, b, d);
      },
      "the bias is not memory of this device; it is null");
  EXPECT_DEATH(set(static_cast<cublasLtMatmulDescAttributes_t>(2), std::int32_t{0}),
               "does not know attribute 2");
  EXPECT_DEATH(set_preference(static_cast<cublasLtMatmulPreferenceAttributes_t>(9), 0.0f),
               "does not know attribute 9");
  cudaSetDevice(1);
  EXPECT_DEATH(multiply(a, b, d), "the handle is of cuda:0, but cuda:1 is current");
  cudaSetDevice(0);
  EXPECT_DEATH(
      {
        cublasLtMatrixLayoutDestroy(a_layout_);
        multiply(a, b, d);
      },
      "cublasLtMatmul: an object was destroyed or never created");
}

TEST(VirtualGpuCublasLtExitDeathTest, Leaks) {
  EXPECT_EXIT(
      {
        cublasLtHandle_t handle = nullptr;
        cublasLtCreate(&handle);
        std::exit(0);
      },
      ::testing::ExitedWithCode(1), "not released at exit:\n *a cuBLASLt handle");
}

}  // namespace
