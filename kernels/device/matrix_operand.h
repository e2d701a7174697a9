// Plain row-major matrices as operands and output of tiled_gemm.h.
#pragma once

#include "kernels/device/tiled_gemm.h"

namespace annulus::kernels {

/// An operand whose element (i, k) is data[i * pitch + k] if AlongK, else data[k * pitch + i]. Width 4 needs
/// an aligned pointer, and pitch and the extent along the packs to be multiples of 4.
template <bool AlongK, int Width>
struct MatrixOperand {
  static constexpr bool kAlongK = AlongK;
  static constexpr int kWidth = Width;
  struct Line {
    const float* start;  // null beyond the last row
  };

  const float* data;
  std::size_t rows;
  std::size_t pitch;

  __device__ Line line(std::size_t i) const { return {i < rows ? data + (AlongK ? i * pitch : i) : nullptr}; }
  __device__ Pack<Width> load(const Line& line, std::size_t k) const {
    if (line.start == nullptr) return {};
    return kernels::load<Width>(line.start + (AlongK ? k : k * pitch));
  }
};

/// y[m][n] = value, plus bias[n] unless null, through ReLU if asked for, 0 where relu_output[m][n] is given
/// and not above 0. y and relu_output are [rows, columns].
struct MatrixOutput {
  float* y;
  std::size_t rows;
  std::size_t columns;
  const float* bias;
  bool relu;
  const float* relu_output;

  template <int Width>
  __device__ void write(std::size_t m, std::size_t n, Pack<Width> pack) const {
    if (m >= rows) return;
    float* const row = y + m * columns;
    for (int i = 0; i < Width; ++i) {
      if (n + i >= columns) return;
      float value = pack.value[i];
      if (bias != nullptr) value += bias[n + i];
      if (relu) value = value <= 0 ? 0 : value;  // false for NaN, which stays
      if (relu_output != nullptr && !(relu_output[m * columns + n + i] > 0)) value = 0;
      row[n + i] = value;
    }
  }
};

}  // namespace annulus::kernels
