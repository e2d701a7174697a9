// The functions of include/cublasLt.h that choose an algorithm and run it. What the library refuses returns
// its status; what it would silently do wrong, or only on some devices, is reported.
#include "cublaslt.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "report.h"
#include "runtime.h"

namespace virtual_gpu {
namespace {

// What an algorithm was chosen for, kept in cublasLtMatmulAlgo_t.
struct Algorithm {
  std::uint64_t problem;  // hash
  std::uint64_t workspace_bytes;
  std::uint32_t reduction;
  std::uint32_t bias_alignment;
  std::uint32_t alignment[4];
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

std::uint32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  std::uint32_t alignment = 256;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

bool is_epilogue(std::uint32_t value) {
  switch (value) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB:
      return true;
  }
  return false;
}

bool has_bias(std::uint32_t epilogue) {
  return (epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB)) != 0;
}

bool writes_bias(std::uint32_t epilogue) {
  return (epilogue & (CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB)) != 0;
}

// Whether the table of types under cublasLtMatmul() in the cuBLAS manual has this row, among those with
// 32-bit accumulation of f32 and bf16. The bias, and its gradient, have the type of D.
bool are_types_supported(const MatmulDesc& desc, const Matrix& a, const Matrix& b, const Matrix& c,
                         const Matrix& d) {
  if (desc.scale_type != CUDA_R_32F || a.type != b.type || c.type != d.type) return false;
  if (desc.bias_type != -1 && desc.bias_type != d.type) return false;
  if (desc.compute_type == CUBLAS_COMPUTE_32F_FAST_TF32) return a.type == CUDA_R_32F && d.type == CUDA_R_32F;
  if (a.type == CUDA_R_32F) return d.type == CUDA_R_32F;
  return a.type == CUDA_R_16BF && (d.type == CUDA_R_16BF || d.type == CUDA_R_32F);
}

// Fills `problem`, or returns what the library says of it.
cublasStatus_t describe(const MatmulDesc& desc, const Matrix& a, const Matrix& b, const Matrix& c,
                        const Matrix& d, Matmul& problem) {
  const bool transpose_a = desc.transpose_a == CUBLAS_OP_T, transpose_b = desc.transpose_b == CUBLAS_OP_T;
  problem = {.m = d.rows,
             .n = d.columns,
             .k = transpose_a ? a.rows : a.columns,
             .a = a,
             .b = b,
             .c = c,
             .d = d,
             .transpose_a = transpose_a,
             .transpose_b = transpose_b,
             .round_to_tf32 = desc.compute_type == CUBLAS_COMPUTE_32F_FAST_TF32,
             .alpha = 1,
             .beta = 0,
             .epilogue = static_cast<cublasLtEpilogue_t>(desc.epilogue),
             .bias_type = d.type};
  for (const Matrix* const matrix : {&a, &b, &c, &d})
    if (matrix->rows == 0 || matrix->columns == 0 || matrix->leading_dimension < matrix->rows)
      return CUBLAS_STATUS_INVALID_VALUE;
  const bool shapes_fit =
      (transpose_a ? a.columns : a.rows) == problem.m && (transpose_b ? b.rows : b.columns) == problem.n &&
      (transpose_b ? b.columns : b.rows) == problem.k && c.rows == d.rows && c.columns == d.columns;
  if (!shapes_fit || !is_epilogue(desc.epilogue)) return CUBLAS_STATUS_INVALID_VALUE;
  return are_types_supported(desc, a, b, c, d) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

// Of everything that an algorithm depends on.
std::uint64_t hash(const Matmul& problem) {
  std::uint64_t result = 14695981039346656037u;  // FNV-1a
  const auto add = [&](std::uint64_t value) { result = (result ^ value) * 1099511628211u; };
  for (const Matrix* const matrix : {&problem.a, &problem.b, &problem.c, &problem.d}) {
    add(matrix->type);
    add(matrix->rows);
    add(matrix->columns);
    add(matrix->leading_dimension);
  }
  add(problem.transpose_a);
  add(problem.transpose_b);
  add(problem.round_to_tf32);
  add(problem.epilogue);
  return result;
}

// Splits sums in two through the workspace where that is allowed. Where the reduction in place is allowed,
// the order of the sums is another one in every call.
Algorithm choose(const Matmul& problem, const MatmulPreference& preference, const MatmulDesc& desc) {
  Algorithm algorithm{.problem = hash(problem),
                      .workspace_bytes = 0,
                      .reduction = CUBLASLT_REDUCTION_SCHEME_NONE,
                      .bias_alignment = alignment_of(desc.bias),
                      .alignment = {}};
  std::copy(std::begin(preference.alignment), std::end(preference.alignment), algorithm.alignment);
  const std::uint64_t partials = 2 * sizeof(float) * problem.m * problem.n;
  if ((preference.reduction_mask & CUBLASLT_REDUCTION_SCHEME_INPLACE) != 0) {
    algorithm.reduction = CUBLASLT_REDUCTION_SCHEME_INPLACE;
  } else if ((preference.reduction_mask & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0 &&
             partials <= preference.workspace_bytes) {
    algorithm.reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    algorithm.workspace_bytes = partials;
  }
  return algorithm;
}

// The input that may be the output too.
constexpr const char* kInPlace = "C";

// An argument of cublasLtMatmul.
struct Argument {
  const char* name;
  const void* data;
  Matrix matrix;  // a vector is a matrix of one column
  std::uint32_t alignment;
};

void check_pointer(const Argument& argument, VirtualDevice& device) {
  if (argument.data == nullptr || device_with(argument.data) != &device)
    report(nullptr, "cublasLtMatmul on cuda:{}: {} is not memory of this device{}", device.memory.ordinal(),
           argument.name, argument.data == nullptr ? "; it is null" : describe_foreign(argument.data));
  if (reinterpret_cast<std::uintptr_t>(argument.data) % argument.alignment != 0)
    report(nullptr, "cublasLtMatmul: {} is not aligned to the {} bytes that its algorithm was chosen for",
           argument.name, argument.alignment);
}

template <class Visit>
void for_each_column(const Argument& argument, Visit visit) {
  const Matrix& matrix = argument.matrix;
  const std::size_t bytes = element_bytes(matrix.type);
  for (std::size_t column = 0; column < matrix.columns; ++column)
    visit(static_cast<const char*>(argument.data) + column * matrix.leading_dimension * bytes,
          matrix.rows * bytes);
}

void check_input(const Argument& argument, VirtualDevice& device) {
  check_allocated(device, argument.data, extent_bytes(argument.matrix), argument.name);
  for_each_column(argument, [&](const void* begin, std::size_t bytes) {
    if (const void* bad = device.memory.shadow().first_unwritten(begin, bytes))
      report(nullptr, "cublasLtMatmul: read of never-written memory: {} at {}", argument.name,
             device.memory.describe(bad));
  });
}

void check_output(const Argument& output, const std::vector<Argument>& inputs, VirtualDevice& device) {
  check_allocated(device, output.data, extent_bytes(output.matrix), output.name);
  const auto* const begin = static_cast<const char*>(output.data);
  for (const Argument& input : inputs) {
    if (input.name == kInPlace && input.data == output.data) continue;
    const auto* const other = static_cast<const char*>(input.data);
    if (other < begin + extent_bytes(output.matrix) && begin < other + extent_bytes(input.matrix))
      report(nullptr, "cublasLtMatmul: {} overlaps {}", output.name, input.name);
  }
}

}  // namespace
}  // namespace virtual_gpu

using namespace virtual_gpu;

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc_handle,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  const Lock lock(machine().mutex);
  constexpr const char* kCall = "cublasLtMatmulAlgoGetHeuristic";
  require_current(live(handle, kCall).device, kCall, "handle");
  const MatmulDesc& desc = live(desc_handle, kCall);
  *found = 0;
  if (requested < 1) return CUBLAS_STATUS_INVALID_VALUE;
  Matmul problem;
  const cublasStatus_t status = describe(desc, live(a, kCall).matrix, live(b, kCall).matrix,
                                         live(c, kCall).matrix, live(d, kCall).matrix, problem);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const RefusedMatmuls refused = machine().refused_matmuls;
  if (refused == RefusedMatmuls::all ||
      (refused == RefusedMatmuls::with_bias_gradient && writes_bias(desc.epilogue)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const Algorithm algorithm = choose(problem, live(preference, kCall), desc);
  *results = {};
  std::memcpy(&results->algo, &algorithm, sizeof algorithm);
  results->workspaceSize = algorithm.workspace_bytes;
  results->state = CUBLAS_STATUS_SUCCESS;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc_handle, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, std::size_t workspace_bytes,
                              cudaStream_t stream_handle) {
  const Lock lock(machine().mutex);
  constexpr const char* kCall = "cublasLtMatmul";
  Stream& stream = machine().stream(stream_handle, kCall);
  require_current(live(handle, kCall).device, kCall, "handle");
  require_current(stream.device, kCall, "stream");
  VirtualDevice& device = current();
  const MatmulDesc& desc = live(desc_handle, kCall);
  Matmul problem;
  const cublasStatus_t status = describe(desc, live(a_layout, kCall).matrix, live(b_layout, kCall).matrix,
                                         live(c_layout, kCall).matrix, live(d_layout, kCall).matrix, problem);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  std::memcpy(&problem.alpha, alpha, sizeof(float));
  std::memcpy(&problem.beta, beta, sizeof(float));

  if (algo == nullptr)
    report(nullptr, "cublasLtMatmul without an algorithm: which one runs would be left to chance");
  Algorithm algorithm;
  std::memcpy(&algorithm, algo, sizeof algorithm);
  if (algorithm.problem != hash(problem))
    report(nullptr, "cublasLtMatmul: the algorithm was chosen for another problem");
  if (workspace_bytes < algorithm.workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;

  std::vector<Argument> inputs{{"A", a, problem.a, algorithm.alignment[0]},
                               {"B", b, problem.b, algorithm.alignment[1]}};
  if (problem.beta != 0) inputs.push_back({kInPlace, c, problem.c, algorithm.alignment[2]});
  std::vector<Argument> outputs{{"D", d, problem.d, algorithm.alignment[3]}};
  if (has_bias(desc.epilogue)) {
    const std::size_t length = desc.epilogue == CUBLASLT_EPILOGUE_BGRADB ? problem.n : problem.m;
    (writes_bias(desc.epilogue) ? outputs : inputs)
        .push_back({"the bias", desc.bias, {problem.bias_type, length, 1, length}, algorithm.bias_alignment});
  }
  if (algorithm.workspace_bytes != 0)
    outputs.push_back(
        {"the workspace", workspace, {CUDA_R_32F, workspace_bytes / 4, 1, workspace_bytes / 4}, 256});
  for (const Argument& argument : inputs) check_pointer(argument, device);
  for (const Argument& argument : outputs) check_pointer(argument, device);

  machine().enqueue(stream, {[=, &device, bias = desc.bias] {
                               const DeviceMemory::Access access(device.memory);
                               for (const Argument& input : inputs) check_input(input, device);
                               for (const Argument& output : outputs) check_output(output, inputs, device);
                               SumOrder order;
                               if (algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_INPLACE)
                                 order.rotation = machine().random()() % problem.k;
                               if (algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
                                 order.parts = 2;
                               multiply(problem, order, a, b, c, d, bias);
                               if (algorithm.workspace_bytes != 0)
                                 std::memset(workspace, 0xff, algorithm.workspace_bytes);
                               for (const Argument& output : outputs)
                                 for_each_column(output, [&](const void* begin, std::size_t bytes) {
                                   device.memory.shadow().set(begin, bytes, ByteState::written);
                                 });
                             },
                             {}});
  return CUBLAS_STATUS_SUCCESS;
}

void virtual_gpu::refuse_matmuls(RefusedMatmuls refused) {
  const Lock lock(machine().mutex);
  machine().refused_matmuls = refused;
}
