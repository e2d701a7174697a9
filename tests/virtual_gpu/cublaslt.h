// What stands behind the handles of include/cublasLt.h.
#pragma once

#include "include/cublasLt.h"
#include "matmul.h"
#include "report.h"
#include "runtime.h"

namespace virtual_gpu {

struct MatmulHandle {
  int device;
};

struct MatmulDesc {
  cublasComputeType_t compute_type;
  cudaDataType_t scale_type;
  std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  std::int32_t bias_type = -1;  // that of D
};

struct MatrixLayout {
  Matrix matrix;
};

struct MatmulPreference {
  std::uint64_t workspace_bytes = 0;
  std::uint32_t reduction_mask = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C, D
};

/// Reports a handle that was destroyed or never created.
template <class T>
T& live(T* handle, const char* call) {
  if (machine().objects.count(handle) == 0)
    report(nullptr, "{}: an object was destroyed or never created", call);
  return *handle;
}

}  // namespace virtual_gpu
