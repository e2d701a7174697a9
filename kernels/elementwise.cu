#include "kernels/device/pack.h"
#include "kernels/elementwise.h"

namespace annulus::kernels::cuda {
namespace {

template <class T>
struct Fill {
  float value;
  T* y;

  template <int Width>
  __device__ void operator()(std::size_t element) const {
    Pack<Width> pack;
    for (float& each : pack.value) each = value;
    store_float(y + element, pack);
  }
};

template <class T>
struct Scale {
  float factor;
  const T* x;
  T* y;

  template <int Width>
  __device__ void operator()(std::size_t element) const {
    Pack<Width> pack = load_float<Width>(x + element);
    for (float& value : pack.value) value *= factor;
    store_float(y + element, pack);
  }
};

template <class T>
struct Add {
  const T* a;
  const T* b;
  T* y;

  template <int Width>
  __device__ void operator()(std::size_t element) const {
    Pack<Width> total = load_float<Width>(a + element);
    const Pack<Width> other = load_float<Width>(b + element);
    for (int i = 0; i < Width; ++i) total.value[i] += other.value[i];
    store_float(y + element, total);
  }
};

template <class From, class To>
struct Cast {
  const From* x;
  To* y;

  template <int Width>
  __device__ void operator()(std::size_t element) const {
    store_float(y + element, load_float<Width>(x + element));
  }
};

/// Calls visit(T()) with the type of any floating dtype of cast().
template <class Visit>
void visit_floating(DType dtype, const Visit& visit) {
  if (dtype == DType::f16)
    visit(Float16());
  else
    visit_activation(dtype, visit);
}

// A block of 32 x 8 threads turns a 32 x 32 tile through shared memory, so that both its reads and its
// writes are contiguous; the extra column keeps a column's elements in different banks.
constexpr unsigned kTile = 32;
constexpr unsigned kTileRows = 8;
constexpr unsigned kTilePitch = kTile + 1;

template <class T>
__global__ void transpose_kernel(std::size_t rows, std::size_t columns, std::size_t tiles_across,
                                 std::size_t tiles, const T* x, T* y) {
  T* tile = shared_memory<T>();
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
  visit_activation(y.dtype(), [&]<class T>(T) {
    for_each_pack<kPackWidth<T>>(stream, y.elements(), {y}, Fill<T>{value, y.as<T>()});
  });
}

void scale(StreamView stream, float factor, const Tensor& x, const Tensor& y) {
  visit_activation(x.dtype(), [&]<class T>(T) {
    for_each_pack<kPackWidth<T>>(stream, x.elements(), {x, y}, Scale<T>{factor, x.as<T>(), y.as<T>()});
  });
}

void add(StreamView stream, const Tensor& a, const Tensor& b, const Tensor& y) {
  visit_activation(a.dtype(), [&]<class T>(T) {
    for_each_pack<kPackWidth<T>>(stream, a.elements(), {a, b, y}, Add<T>{a.as<T>(), b.as<T>(), y.as<T>()});
  });
}

void cast(StreamView stream, const Tensor& x, const Tensor& y) {
  visit_floating(x.dtype(), [&]<class From>(From) {
    visit_floating(y.dtype(), [&]<class To>(To) {
      constexpr int kWidth = std::max(kPackWidth<From>, kPackWidth<To>);
      for_each_pack<kWidth>(stream, x.elements(), {x, y}, Cast<From, To>{x.as<From>(), y.as<To>()});
    });
  });
}

void transpose_inner(StreamView stream, const Tensor& x, const Tensor& y) {
  const std::size_t rows = x.shape()[1];
  const std::size_t columns = x.shape()[2];
  const std::size_t tiles_across = blocks_for(columns, kTile);
  const std::size_t tiles = tiles_across * blocks_for(rows, kTile);
  visit_activation(x.dtype(), [&]<class T>(T) {
    launch(stream, {x.shape()[0] * tiles}, dim3(kTile, kTileRows), kTile * kTilePitch * sizeof(T),
           transpose_kernel<T>, rows, columns, tiles_across, tiles, x.as<T>(), y.as<T>());
  });
}

}  // namespace annulus::kernels::cuda
