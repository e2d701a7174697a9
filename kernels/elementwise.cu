#include "kernels/device/pack.h"
#include "kernels/elementwise.h"

namespace annulus::kernels::cuda {
namespace {

struct Fill {
  float value;
  float* y;

  template <int Width>
  __device__ void operator()(std::size_t element) const {
    Pack<Width> pack;
    for (float& each : pack.value) each = value;
    store(y + element, pack);
  }
};

struct Scale {
  float factor;
  const float* x;
  float* y;

  template <int Width>
  __device__ void operator()(std::size_t element) const {
    Pack<Width> pack = load<Width>(x + element);
    for (float& value : pack.value) value *= factor;
    store(y + element, pack);
  }
};

struct Add {
  const float* a;
  const float* b;
  float* y;

  template <int Width>
  __device__ void operator()(std::size_t element) const {
    Pack<Width> total = load<Width>(a + element);
    const Pack<Width> other = load<Width>(b + element);
    for (int i = 0; i < Width; ++i) total.value[i] += other.value[i];
    store(y + element, total);
  }
};

// A block of 32 x 8 threads turns a 32 x 32 tile through shared memory, so that both its reads and its
// writes are contiguous; the extra column keeps a column's elements in different banks.
constexpr unsigned kTile = 32;
constexpr unsigned kTileRows = 8;
constexpr unsigned kTilePitch = kTile + 1;

__global__ void transpose_kernel(std::size_t rows, std::size_t columns, std::size_t tiles_across,
                                 std::size_t tiles, const float* x, float* y) {
  float* tile = shared_memory<float>();
  const std::size_t image = blockIdx.x / tiles * rows * columns;
  const std::size_t first_row = blockIdx.x % tiles / tiles_across * kTile;
  const std::size_t first_column = blockIdx.x % tiles_across * kTile;
  for (unsigned r = threadIdx.y; r < kTile; r += kTileRows) {
    const std::size_t row = first_row + r;
    const std::size_t column = first_column + threadIdx.x;
    if (row < rows && column < columns)
      tile[r * kTilePitch + threadIdx.x] = x[image + row * columns + column];
  }
  __syncthreads();
  for (unsigned c = threadIdx.y; c < kTile; c += kTileRows) {
    const std::size_t row = first_row + threadIdx.x;
    const std::size_t column = first_column + c;
    if (row < rows && column < columns) y[image + column * rows + row] = tile[threadIdx.x * kTilePitch + c];
  }
}

}  // namespace

void fill(StreamView stream, float value, const Tensor& y) {
  for_each_pack(stream, y.elements(), {y.data()}, Fill{value, y.as<float>()});
}

void scale(StreamView stream, float factor, const Tensor& x, const Tensor& y) {
  for_each_pack(stream, x.elements(), {x.data(), y.data()}, Scale{factor, x.as<float>(), y.as<float>()});
}

void add(StreamView stream, const Tensor& a, const Tensor& b, const Tensor& y) {
  for_each_pack(stream, a.elements(), {a.data(), b.data(), y.data()},
                Add{a.as<float>(), b.as<float>(), y.as<float>()});
}

void transpose_inner(StreamView stream, const Tensor& x, const Tensor& y) {
  const std::size_t rows = x.shape()[1];
  const std::size_t columns = x.shape()[2];
  const std::size_t tiles_across = blocks_for(columns, kTile);
  const std::size_t tiles = tiles_across * blocks_for(rows, kTile);
  launch(stream, {x.shape()[0] * tiles}, dim3(kTile, kTileRows), kTile * kTilePitch * sizeof(float),
         transpose_kernel, rows, columns, tiles_across, tiles, x.as<float>(), y.as<float>());
}

}  // namespace annulus::kernels::cuda
