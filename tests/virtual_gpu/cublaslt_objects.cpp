// The functions of include/cublasLt.h that make, fill and destroy handles and descriptors.
#include <cstring>

#include "cublaslt.h"

using namespace virtual_gpu;

namespace {

template <class T>
T* create(const char* what, T value) {
  T* const made = new T(value);
  machine().objects[made] = what;
  return made;
}

template <class T>
cublasStatus_t destroy(T* handle, const char* call) {
  const Lock lock(machine().mutex);
  live(handle, call);
  machine().objects.erase(handle);
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t set_value(T& attribute, const void* value, std::size_t bytes) {
  if (value == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&attribute, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  const Lock lock(machine().mutex);
  require_no_capture("cublasLtCreate");
  current();
  *handle = create("cuBLASLt handle", MatmulHandle{current_device()});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle, "cublasLtDestroy"); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute_type,
                                        cudaDataType_t scale_type) {
  const Lock lock(machine().mutex);
  *desc = create("cuBLASLt matmul descriptor", MatmulDesc{compute_type, scale_type});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  return destroy(desc, "cublasLtMatmulDescDestroy");
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              std::size_t bytes) {
  const Lock lock(machine().mutex);
  MatmulDesc& desc = live(handle, "cublasLtMatmulDescSetAttribute");
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set_value(desc.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set_value(desc.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set_value(desc.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set_value(desc.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return set_value(desc.bias_type, value, bytes);
  }
  report(nullptr, "cublasLtMatmulDescSetAttribute: the virtual GPU does not know attribute {}",
         static_cast<int>(attribute));
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t leading_dimension) {
  const Lock lock(machine().mutex);
  *layout = create("cuBLASLt matrix layout",
                   MatrixLayout{{type, rows, columns, static_cast<std::size_t>(leading_dimension)}});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy(layout, "cublasLtMatrixLayoutDestroy");
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  const Lock lock(machine().mutex);
  *preference = create("cuBLASLt preference", MatmulPreference{});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy(preference, "cublasLtMatmulPreferenceDestroy");
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  const Lock lock(machine().mutex);
  MatmulPreference& preference = live(handle, "cublasLtMatmulPreferenceSetAttribute");
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set_value(preference.workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set_value(preference.reduction_mask, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set_value(preference.alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
                       bytes);
  }
  report(nullptr, "cublasLtMatmulPreferenceSetAttribute: the virtual GPU does not know attribute {}",
         static_cast<int>(attribute));
}
