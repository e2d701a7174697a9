#include <algorithm>

#include "core/base/philox.h"
#include "kernels/augment.h"
#include "kernels/device/launch.h"

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

// Blocks [image, part]: every thread draws its image's crop and flip again, which is cheaper than
// waiting for one that does it for all.
__global__ void augment_kernel(const __grid_constant__ Normalisation normalisation, Draw draw,
                               std::size_t parts, std::size_t height, std::size_t width, std::size_t channels,
                               const std::uint8_t* x, const std::int64_t* sample_index, float* y) {
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
  const std::size_t elements = height * width * channels;
  const std::uint8_t* from = x + image * elements;
  float* to = y + image * elements;
  for (std::size_t e = part * blockDim.x + threadIdx.x; e < elements; e += parts * blockDim.x) {
    const std::size_t channel = e % channels;
    const std::size_t column = e / channels % width;
    const std::size_t row = e / channels / width;
    // Coordinates in the padded image; unsigned, so that "before the image" is past its end.
    const std::size_t source_row = row + down - padding;
    const std::size_t source_column = (flip ? width - 1 - column : column) + right - padding;
    float value = 0;
    if (source_row < height && source_column < width) {
      const float pixel = from[(source_row * width + source_column) * channels + channel];
      value = (pixel / 255 - normalisation.mean[channel]) * normalisation.inverse_std[channel];
    }
    to[e] = value;
  }
}

}  // namespace

void augment(StreamView stream, const AugmentOptions& options, const Tensor& x, const Tensor& sample_index,
             const Tensor& y) {
  const Shape& shape = x.shape();
  Normalisation normalisation;
  std::copy(options.mean.begin(), options.mean.end(), normalisation.mean);
  std::copy(options.inverse_std.begin(), options.inverse_std.end(), normalisation.inverse_std);
  const Draw draw{options.crop_padding, options.horizontal_flip, options.seed, options.values};
  constexpr unsigned kThreads = 256;
  constexpr std::size_t kElementsPerThread = 4;
  const std::size_t parts =
      blocks_for(shape[1] * shape[2] * shape[3], std::size_t{kThreads} * kElementsPerThread);
  launch(stream, {shape[0] * parts}, kThreads, 0, augment_kernel, normalisation, draw, parts, shape[1],
         shape[2], shape[3], x.as<std::uint8_t>(),
         sample_index.empty() ? nullptr : sample_index.as<std::int64_t>(), y.as<float>());
}

}  // namespace annulus::kernels::cuda
