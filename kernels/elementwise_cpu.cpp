#include <algorithm>

#include "kernels/check.h"
#include "kernels/dispatch.h"
#include "kernels/elementwise.h"
#include "kernels/multiversion_cpu.h"

namespace annulus::kernels {

void fill(StreamView stream, float value, const Tensor& y) {
  check_tensor("fill", "y", y, y.shape(), stream.device());
  ANNULUS_DISPATCH(stream, fill, value, y);
}

void scale(StreamView stream, float factor, const Tensor& x, const Tensor& y) {
  check_tensor("scale", "x", x, x.shape(), stream.device());
  check_tensor("scale", "y", y, x.shape(), stream.device());
  ANNULUS_DISPATCH(stream, scale, factor, x, y);
}

void add(StreamView stream, const Tensor& a, const Tensor& b, const Tensor& y) {
  check_tensor("add", "a", a, a.shape(), stream.device());
  check_tensor("add", "b", b, a.shape(), stream.device());
  check_tensor("add", "y", y, a.shape(), stream.device());
  ANNULUS_DISPATCH(stream, add, a, b, y);
}

void transpose_inner(StreamView stream, const Tensor& x, const Tensor& y) {
  check_rank("transpose_inner", "x", x, 3);
  check_tensor("transpose_inner", "x", x, x.shape(), stream.device());
  check_tensor("transpose_inner", "y", y, {x.shape()[0], x.shape()[2], x.shape()[1]}, stream.device());
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

}  // namespace

void fill(StreamView, float value, const Tensor& y) { std::fill_n(y.as<float>(), y.elements(), value); }

void scale(StreamView, float factor, const Tensor& x, const Tensor& y) {
  scale_loop(x.elements(), factor, x.as<float>(), y.as<float>());
}

void add(StreamView, const Tensor& a, const Tensor& b, const Tensor& y) {
  add_loop(a.elements(), a.as<float>(), b.as<float>(), y.as<float>());
}

void transpose_inner(StreamView, const Tensor& x, const Tensor& y) {
  const std::size_t rows = x.shape()[1];
  const std::size_t columns = x.shape()[2];
  const float* source = x.as<float>();
  float* target = y.as<float>();
  for (std::size_t image = 0; image < x.shape()[0]; ++image) {
    for (std::size_t column = 0; column < columns; ++column)
      for (std::size_t row = 0; row < rows; ++row)
        target[column * rows + row] = source[row * columns + column];
    source += rows * columns;
    target += rows * columns;
  }
}

}  // namespace cpu
}  // namespace annulus::kernels
