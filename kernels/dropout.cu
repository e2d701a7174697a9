#include "kernels/device/pack.h"
#include "kernels/dropout.h"

namespace annulus::kernels::cuda {
namespace {

// One thread per Philox block, which is four consecutive elements of a row. With Width 4 the rows consist of
// whole aligned packs; with Width 1 the elements are moved one by one and the last block may be cut short.
template <int Width>
__global__ void dropout_kernel(DropoutKey key, float probability, std::size_t rows, std::size_t row_elements,
                               const float* x, float* y) {
  constexpr std::size_t kBlock = 4;
  const std::size_t blocks_per_row = (row_elements + kBlock - 1) / kBlock;
  const float keep = 1 - probability;
  for (std::size_t i = global_thread(); i < rows * blocks_per_row; i += global_threads()) {
    const std::size_t row = i / blocks_per_row;
    const std::size_t block = i % blocks_per_row;
    const Philox random(key.seed, RandomPurpose::dropout, key.values->step,
                        (std::uint64_t{key.layer} << 32) + key.first_sample + row);
    const PhiloxBlock words = random.block(block);
    const std::size_t first = row * row_elements + block * kBlock;
#pragma unroll
    for (std::size_t part = 0; part < kBlock; part += Width) {
      if (block * kBlock + part >= row_elements) break;
      Pack<Width> pack = load<Width>(x + first + part);
      for (int e = 0; e < Width; ++e)
        pack.value[e] = Philox::to_uniform(words.word[part + e]) < probability ? 0 : pack.value[e] / keep;
      store(y + first + part, pack);
    }
  }
}

}  // namespace

void dropout(StreamView stream, const DropoutKey& key, float probability, const Tensor& x, const Tensor& y) {
  if (x.elements() == 0) return;
  const std::size_t rows = x.shape()[0];
  const std::size_t row_elements = x.elements() / rows;
  const bool packed =
      row_elements % kPackWidth == 0 && is_pack_aligned(x.data()) && is_pack_aligned(y.data());
  constexpr unsigned kThreads = 256;
  const Grid grid{grid_stride_blocks(rows * blocks_for(row_elements, kPackWidth), kThreads)};
  launch(stream, grid, kThreads, 0, packed ? dropout_kernel<4> : dropout_kernel<1>, key, probability, rows,
         row_elements, x.as<float>(), y.as<float>());
}

}  // namespace annulus::kernels::cuda
