// Plain row-major matrices as operands and output of the matrix products.
#pragma once

#include "kernels/device/gemm_plan.h"

namespace annulus::kernels {

/// An operand whose element (i, k) is data[i * pitch + k] if AlongK, else data[k * pitch + i]. Packs need an
/// aligned pointer, and pitch and the extent along them to be multiples of Width.
template <class T, bool AlongK, int Width>
struct MatrixOperand {
  using Element = T;
  static constexpr bool kAlongK = AlongK;
  static constexpr int kWidth = Width;
  struct Line {
    const T* start;  // null beyond the last row
  };

  const T* data;
  std::size_t rows;
  std::size_t pitch;

  __device__ Line line(std::size_t i) const { return {i < rows ? data + (AlongK ? i * pitch : i) : nullptr}; }
  __device__ PackBits<T, Width> load(const Line& line, std::uint32_t k) const {
    if (line.start == nullptr) return {};
    return load_bits<Width>(line.start + (AlongK ? k : k * pitch));
  }
};

/// y[m][n] = value, plus bias[n] unless null, through ReLU if asked for, 0 where relu_output[m][n] is given
/// and not above 0. y and relu_output are [rows, columns].
template <class T>
struct MatrixOutput {
  static constexpr int kWidth = 16 / sizeof(T);

  T* y;
  std::size_t rows;
  std::size_t columns;
  const T* bias;
  bool relu;
  const T* relu_output;
  bool packed;  // rows start at multiples of 16 bytes

  MatrixOutput(T* y_, std::size_t rows_, std::size_t columns_, const T* bias_ = nullptr, bool relu_ = false,
               const T* relu_output_ = nullptr)
      : y(y_),
        rows(rows_),
        columns(columns_),
        bias(bias_),
        relu(relu_),
        relu_output(relu_output_),
        packed(columns_ % kWidth == 0 && is_pack_aligned(y_) && is_pack_aligned(relu_output_)) {}

  template <int Width>
  __device__ void write(std::size_t m, std::size_t n, Pack<Width> pack) const {
    if (m >= rows) return;
    const std::size_t at = m * columns + n;
    if (packed && n < columns) {
      Pack<Width, T> mask{};
      if (relu_output != nullptr) mask = load<Width>(relu_output + at);
      Pack<Width, T> result;
#pragma unroll
      for (int i = 0; i < Width; ++i) result.value[i] = finish(pack.value[i], n + i, mask.value[i]);
      store(y + at, result);
      return;
    }
#pragma unroll
    for (int i = 0; i < Width; ++i) {
      if (n + i >= columns) return;
      y[at + i] = finish(pack.value[i], n + i, relu_output == nullptr ? T{} : relu_output[at + i]);
    }
  }

 private:
  __device__ T finish(float value, std::size_t n, T mask) const {
    if (bias != nullptr) value += to_float(bias[n]);
    if (relu) value = value <= 0 ? 0 : value;  // false for NaN, which stays
    if (relu_output != nullptr && !(to_float(mask) > 0)) value = 0;
    return from_float<T>(value);
  }
};

}  // namespace annulus::kernels
