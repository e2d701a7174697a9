// The arithmetic of the emulated cuBLASLt: D = alpha op(A) op(B) + beta C, and its epilogues, on column-major
// matrices in memory that the caller may touch.
#pragma once

#include <cstddef>

#include "include/cublasLt.h"

namespace virtual_gpu {

struct Matrix {
  cudaDataType_t type;
  std::size_t rows, columns, leading_dimension;
};

std::size_t element_bytes(cudaDataType_t type);

/// From the first to the last element.
std::size_t extent_bytes(const Matrix& matrix);

/// How the terms of a sum over k are added: in `parts` runs of them, which start `rotation` terms from the
/// first.
struct SumOrder {
  std::size_t parts = 1;
  std::size_t rotation = 0;
};

struct Matmul {
  std::size_t m, n, k;
  Matrix a, b, c, d;
  bool transpose_a, transpose_b;
  bool round_to_tf32;
  float alpha, beta;
  cublasLtEpilogue_t epilogue;
  cudaDataType_t bias_type;
};

/// `bias` is read or, with BGRADA and BGRADB, written. As in the library, ReLU makes NaN 0.
void multiply(const Matmul& problem, SumOrder order, const void* a, const void* b, const void* c, void* d,
              void* bias);

}  // namespace virtual_gpu
