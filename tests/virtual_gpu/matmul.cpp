#include "matmul.h"

#include <vector>

#include "core/base/half.h"
#include "include/virtual_mma.h"

namespace virtual_gpu {
namespace {

float load(cudaDataType_t type, const void* from, std::size_t index) {
  if (type == CUDA_R_16BF) return annulus::to_float(static_cast<const annulus::BFloat16*>(from)[index]);
  return static_cast<const float*>(from)[index];
}

void store(cudaDataType_t type, void* to, std::size_t index, float value) {
  if (type == CUDA_R_16BF)
    static_cast<annulus::BFloat16*>(to)[index] = annulus::to_bfloat16(value);
  else
    static_cast<float*>(to)[index] = value;
}

// Rows of terms along k, as the multiplier gets them.
std::vector<float> operand(const Matmul& problem, const Matrix& matrix, const void* data, bool along_columns,
                           std::size_t rows) {
  std::vector<float> result(rows * problem.k);
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t k = 0; k < problem.k; ++k) {
      const std::size_t at =
          along_columns ? row * matrix.leading_dimension + k : k * matrix.leading_dimension + row;
      const float value = load(matrix.type, data, at);
      result[row * problem.k + k] =
          problem.round_to_tf32 ? __builtin_bit_cast(float, round_to_tf32(value)) : value;
    }
  return result;
}

// term(k) summed in eight lanes for each part.
template <class Term>
float sum(std::size_t begin, std::size_t end, Term term) {
  constexpr std::size_t kLanes = 8;
  float lanes[kLanes] = {};
  std::size_t k = begin;
  for (; k + kLanes <= end; k += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(k + lane);
  float total = 0;
  for (const float lane : lanes) total += lane;
  for (; k < end; ++k) total += term(k);
  return total;
}

template <class Term>
float sum(std::size_t k, SumOrder order, Term term) {
  float total = 0;
  const std::size_t first = k == 0 ? 0 : order.rotation % k;
  for (std::size_t part = 0; part < order.parts; ++part) {
    const std::size_t begin = part * k / order.parts, end = (part + 1) * k / order.parts;
    if (begin <= first && first < end)
      total += sum(first, end, term) + sum(begin, first, term);
    else
      total += sum(begin, end, term);
  }
  return total;
}

}  // namespace

std::size_t element_bytes(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

std::size_t extent_bytes(const Matrix& matrix) {
  if (matrix.rows == 0 || matrix.columns == 0) return 0;
  return ((matrix.columns - 1) * matrix.leading_dimension + matrix.rows) * element_bytes(matrix.type);
}

void multiply(const Matmul& problem, SumOrder order, const void* a, const void* b, const void* c, void* d,
              void* bias) {
  const std::size_t depth = problem.k;
  const std::vector<float> rows = operand(problem, problem.a, a, problem.transpose_a, problem.m);
  const std::vector<float> columns = operand(problem, problem.b, b, !problem.transpose_b, problem.n);
  const bool adds_bias = (problem.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
  const bool has_relu = (problem.epilogue & CUBLASLT_EPILOGUE_RELU) != 0;
  for (std::size_t j = 0; j < problem.n; ++j)
    for (std::size_t i = 0; i < problem.m; ++i) {
      const float* const row = &rows[i * depth];
      const float* const column = &columns[j * depth];
      float value = problem.alpha * sum(depth, order, [=](std::size_t k) { return row[k] * column[k]; });
      if (problem.beta != 0)
        value += problem.beta * load(problem.c.type, c, j * problem.c.leading_dimension + i);
      if (adds_bias) value += load(problem.bias_type, bias, i);
      if (has_relu) value = value > 0 ? value : 0;
      store(problem.d.type, d, j * problem.d.leading_dimension + i, value);
    }
  const auto gradient = [&](const std::vector<float>& lines, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      store(problem.bias_type, bias, i,
            sum(depth, order, [&](std::size_t k) { return lines[i * depth + k]; }));
  };
  if (problem.epilogue == CUBLASLT_EPILOGUE_BGRADA) gradient(rows, problem.m);
  if (problem.epilogue == CUBLASLT_EPILOGUE_BGRADB) gradient(columns, problem.n);
}

}  // namespace virtual_gpu
