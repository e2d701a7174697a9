#include <algorithm>
#include <cstring>

#include "core/base/half.h"
#include "kernels/check.h"
#include "kernels/dispatch.h"
#include "kernels/elementwise.h"
#include "kernels/multiversion_cpu.h"

namespace annulus::kernels {

void fill(StreamView stream, float value, const Tensor& y) {
  check_activation("fill", "y", y, stream.device());
  ANNULUS_DISPATCH(stream, fill, value, y);
}

void scale(StreamView stream, float factor, const Tensor& x, const Tensor& y) {
  const DType dtype = check_activation("scale", "x", x, stream.device());
  check_tensor("scale", "y", y, x.shape(), stream.device(), dtype);
  ANNULUS_DISPATCH(stream, scale, factor, x, y);
}

void add(StreamView stream, const Tensor& a, const Tensor& b, const Tensor& y) {
  const DType dtype = check_activation("add", "a", a, stream.device());
  check_tensor("add", "b", b, a.shape(), stream.device(), dtype);
  check_tensor("add", "y", y, a.shape(), stream.device(), dtype);
  ANNULUS_DISPATCH(stream, add, a, b, y);
}

void cast(StreamView stream, const Tensor& x, const Tensor& y) {
  for (const DType dtype : {x.dtype(), y.dtype()})
    require<ShapeError>(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
                        "cast: x and y must be f32, bf16 or f16, not {} and {}", name_of(x.dtype()),
                        name_of(y.dtype()));
  check_tensor("cast", "x", x, x.shape(), stream.device(), x.dtype());
  check_tensor("cast", "y", y, x.shape(), stream.device(), y.dtype());
  ANNULUS_DISPATCH(stream, cast, x, y);
}

void transpose_inner(StreamView stream, const Tensor& x, const Tensor& y) {
  check_rank("transpose_inner", "x", x, 3);
  const DType dtype = check_activation("transpose_inner", "x", x, stream.device());
  check_tensor("transpose_inner", "y", y, {x.shape()[0], x.shape()[2], x.shape()[1]}, stream.device(), dtype);
  ANNULUS_DISPATCH(stream, transpose_inner, x, y);
}

namespace cpu {
namespace {

ANNULUS_MULTIVERSION void scale_loop(std::size_t count, float factor, const float* x, float* y) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) y[i] = factor * x[i];
}

ANNULUS_MULTIVERSION void add_loop(std::size_t count, const float* a, const float* b, float* y) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) y[i] = a[i] + b[i];
}

template <class Visit>
void visit_floating(DType dtype, const Visit& visit) {
  if (dtype == DType::bf16)
    visit(BFloat16());
  else if (dtype == DType::f16)
    visit(Float16());
  else
    visit(float());
}

// Four floats are a register on every machine that this is built for.
using Quad = float __attribute__((vector_size(16)));

// Transposes a 4 x 4 block in registers: quarters of the time of element by element.
void transpose_block(const float* x, std::size_t x_stride, float* y, std::size_t y_stride) {
  Quad a, b, c, d;
  std::memcpy(&a, x, sizeof a);
  std::memcpy(&b, x + x_stride, sizeof b);
  std::memcpy(&c, x + 2 * x_stride, sizeof c);
  std::memcpy(&d, x + 3 * x_stride, sizeof d);
  const Quad ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5),
             ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Quad cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5),
             cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  a = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
  b = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
  c = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
  d = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
  std::memcpy(y, &a, sizeof a);
  std::memcpy(y + y_stride, &b, sizeof b);
  std::memcpy(y + 2 * y_stride, &c, sizeof c);
  std::memcpy(y + 3 * y_stride, &d, sizeof d);
}

// y[column][row] = x[row][column]
void transpose(std::size_t rows, std::size_t columns, const float* x, float* y) {
  const std::size_t whole_rows = rows - rows % 4, whole_columns = columns - columns % 4;
  for (std::size_t column = 0; column < whole_columns; column += 4)
    for (std::size_t row = 0; row < whole_rows; row += 4)
      transpose_block(x + row * columns + column, columns, y + column * rows + row, rows);
  for (std::size_t column = 0; column < columns; ++column)
    for (std::size_t row = column < whole_columns ? whole_rows : 0; row < rows; ++row)
      y[column * rows + row] = x[row * columns + column];
}

}  // namespace

void fill(StreamView, float value, const Tensor& y) { std::fill_n(y.as<float>(), y.elements(), value); }

void scale(StreamView, float factor, const Tensor& x, const Tensor& y) {
  scale_loop(x.elements(), factor, x.as<float>(), y.as<float>());
}

void add(StreamView, const Tensor& a, const Tensor& b, const Tensor& y) {
  add_loop(a.elements(), a.as<float>(), b.as<float>(), y.as<float>());
}

void cast(StreamView, const Tensor& x, const Tensor& y) {
  visit_floating(x.dtype(), [&]<class From>(From) {
    visit_floating(y.dtype(), [&]<class To>(To) {
      const From* const from = x.as<From>();
      To* const to = y.as<To>();
      for (std::size_t i = 0; i < x.elements(); ++i) to[i] = from_float<To>(to_float(from[i]));
    });
  });
}

void transpose_inner(StreamView, const Tensor& x, const Tensor& y) {
  const std::size_t rows = x.shape()[1], columns = x.shape()[2], image = rows * columns;
  for (std::size_t i = 0; i < x.shape()[0]; ++i)
    transpose(rows, columns, x.as<float>() + i * image, y.as<float>() + i * image);
}

}  // namespace cpu
}  // namespace annulus::kernels
