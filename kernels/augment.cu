#include <algorithm>

#include "core/base/philox.h"
#include "kernels/augment.h"
#include "kernels/device/pack.h"

namespace annulus::kernels::cuda {
namespace {

struct Normalisation {
  float mean[kMaxImageChannels];
  float inverse_std[kMaxImageChannels];
};

struct Draw {
  std::size_t padding;
  bool flip;
  std::uint64_t seed;
  const StepValues* values;
};

struct ImageExtents {
  std::size_t height, width, channels;
  std::size_t pixel_stride, channel_stride;  // of x
};

// Blocks [image, part]: every thread draws its image's crop and flip again, which is cheaper than waiting for
// one that does it for all. A thread gathers the bytes of a pack of elements of y.
template <int Width, class T>
__global__ void augment_kernel(const __grid_constant__ Normalisation normalisation, Draw draw,
                               std::size_t parts, ImageExtents extents, const std::uint8_t* x,
                               const std::int64_t* sample_index, T* y) {
  const std::size_t image = blockIdx.x / parts;
  const std::size_t part = blockIdx.x % parts;
  const std::size_t padding = draw.padding;
  std::size_t down = padding;
  std::size_t right = padding;
  bool flip = false;
  if (padding != 0 || draw.flip) {
    const Philox random(draw.seed, RandomPurpose::augment, draw.values->epoch,
                        static_cast<std::uint64_t>(sample_index[image]));
    const auto offsets = static_cast<std::uint32_t>(2 * padding + 1);
    down = random.below(0, offsets);
    right = random.below(1, offsets);
    flip = draw.flip && random.word(2) % 2 == 1;
  }
  const std::size_t elements = extents.height * extents.width * extents.channels;
  const std::uint8_t* from = x + image * elements;
  T* to = y + image * elements;
  for (std::size_t pack = part * blockDim.x + threadIdx.x; pack < elements / Width;
       pack += parts * blockDim.x) {
    Pack<Width> values;
#pragma unroll
    for (int e = 0; e < Width; ++e) {
      const std::size_t element = pack * Width + e;
      const std::size_t channel = element % extents.channels;
      const std::size_t column = element / extents.channels % extents.width;
      const std::size_t row = element / extents.channels / extents.width;
      // Coordinates in the padded image; unsigned, so that "before the image" is past its end.
      const std::size_t source_row = row + down - padding;
      const std::size_t source_column = (flip ? extents.width - 1 - column : column) + right - padding;
      float value = 0;
      if (source_row < extents.height && source_column < extents.width) {
        const std::size_t pixel = source_row * extents.width + source_column;
        const float byte = from[pixel * extents.pixel_stride + channel * extents.channel_stride];
        value = (byte / 255 - normalisation.mean[channel]) * normalisation.inverse_std[channel];
      }
      values.value[e] = value;
    }
    store_float(to + pack * Width, values);
  }
}

}  // namespace

void augment(StreamView stream, const AugmentOptions& options, const Tensor& x, const Tensor& sample_index,
             const Tensor& y) {
  const Shape& shape = y.shape();
  Normalisation normalisation;
  std::copy(options.mean.begin(), options.mean.end(), normalisation.mean);
  std::copy(options.inverse_std.begin(), options.inverse_std.end(), normalisation.inverse_std);
  const Draw draw{options.crop_padding, options.horizontal_flip, options.seed, options.values};
  ImageExtents extents{shape[1], shape[2], shape[3], shape[3], 1};
  if (options.layout == ImageLayout::channels_first) {
    extents.pixel_stride = 1;
    extents.channel_stride = shape[1] * shape[2];
  }
  const std::size_t elements = shape[1] * shape[2] * shape[3];
  visit_activation(y.dtype(), [&]<class T>(T) {
    const bool packed = elements % kPackWidth<T> == 0 && is_pack_aligned(y.data());
    with_pack_width<T>(packed, [&]<int Width>(std::integral_constant<int, Width>) {
      constexpr unsigned kThreads = 256;
      const std::size_t parts = blocks_for(elements / Width, kThreads);
      launch(stream, {shape[0] * parts}, kThreads, 0, augment_kernel<Width, T>, normalisation, draw, parts,
             extents, x.as<std::uint8_t>(), sample_index.empty() ? nullptr : sample_index.as<std::int64_t>(),
             y.as<T>());
    });
  });
}

}  // namespace annulus::kernels::cuda
