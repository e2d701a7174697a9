#include "kernels/device/pack.h"
#include "kernels/dropout.h"

namespace annulus::kernels::cuda {
namespace {

constexpr std::size_t kBlock = 4;  // elements, in a row, that one Philox block decides on

// One thread per group of `Group` consecutive elements of a row, which are whole Philox blocks. With Width =
// Group the rows consist of whole aligned packs; with Width 1 the elements are moved one by one and the last
// group may be cut short.
template <int Group, int Width, class T>
__global__ void dropout_kernel(DropoutKey key, float probability, std::size_t rows, std::size_t row_elements,
                               const T* x, T* y) {
  const std::size_t groups_per_row = (row_elements + Group - 1) / Group;
  const float keep = 1 - probability;
  for (std::size_t i = global_thread(); i < rows * groups_per_row; i += global_threads()) {
    const std::size_t row = i / groups_per_row;
    const std::size_t in_row = i % groups_per_row * Group;
    const Philox random(key.seed, RandomPurpose::dropout, key.values->step,
                        (std::uint64_t{key.layer} << 32) + key.first_sample + row);
    PhiloxBlock words[Group / kBlock];
#pragma unroll
    for (std::size_t b = 0; b < Group / kBlock; ++b) words[b] = random.block(in_row / kBlock + b);
#pragma unroll
    for (int part = 0; part < Group; part += Width) {
      if (in_row + part >= row_elements) break;
      const std::size_t first = row * row_elements + in_row + part;
      Pack<Width> pack = load_float<Width>(x + first);
#pragma unroll
      for (int e = 0; e < Width; ++e) {
        const std::uint32_t word = words[(part + e) / kBlock].word[(part + e) % kBlock];
        pack.value[e] = Philox::to_uniform(word) < probability ? 0 : pack.value[e] / keep;
      }
      store_float(y + first, pack);
    }
  }
}

}  // namespace

void dropout(StreamView stream, const DropoutKey& key, float probability, const Tensor& x, const Tensor& y) {
  if (x.elements() == 0) return;
  const std::size_t rows = x.shape()[0];
  const std::size_t row_elements = x.elements() / rows;
  visit_activation(x.dtype(), [&]<class T>(T) {
    constexpr int kGroup = kPackWidth<T>;
    const bool packed = row_elements % kGroup == 0 && is_pack_aligned(x.data()) && is_pack_aligned(y.data());
    constexpr unsigned kThreads = 256;
    const Grid grid{grid_stride_blocks(rows * blocks_for(row_elements, kGroup), kThreads)};
    launch(stream, grid, kThreads, 0,
           packed ? dropout_kernel<kGroup, kGroup, T> : dropout_kernel<kGroup, 1, T>, key, probability, rows,
           row_elements, x.as<T>(), y.as<T>());
  });
}

}  // namespace annulus::kernels::cuda
