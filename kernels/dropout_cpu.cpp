#include "kernels/check.h"
#include "kernels/dispatch.h"
#include "kernels/dropout.h"

namespace annulus::kernels {

void dropout(StreamView stream, const DropoutKey& key, float probability, const Tensor& x, const Tensor& y) {
  require<ConfigError>(probability >= 0 && probability < 1,
                       "dropout: the probability must be in [0, 1), but is {}", probability);
  const DType dtype = check_activation("dropout", "x", x, stream.device());
  check_tensor("dropout", "y", y, x.shape(), stream.device(), dtype);
  if (x.elements() == 0) return;
  ANNULUS_DISPATCH(stream, dropout, key, probability, x, y);
}

namespace cpu {

void dropout(StreamView, const DropoutKey& key, float probability, const Tensor& x, const Tensor& y) {
  const std::size_t batch = x.shape().rank() == 0 ? 1 : x.shape()[0];
  const std::size_t features = x.elements() / batch;
  const float* source = x.as<float>();
  float* target = y.as<float>();
  const float factor = 1 / (1 - probability);
  for (std::size_t row = 0; row < batch; ++row) {
    const std::uint64_t sample = key.first_sample + row;
    const Philox random(key.seed, RandomPurpose::dropout, key.values->step,
                        (std::uint64_t{key.layer} << 32) + sample);
    for (std::size_t first = 0; first < features; first += 4) {
      const PhiloxBlock block = random.block(first / 4);
      for (std::size_t lane = 0; lane < 4 && first + lane < features; ++lane) {
        const std::size_t i = row * features + first + lane;
        target[i] = Philox::to_uniform(block.word[lane]) < probability ? 0 : source[i] * factor;
      }
    }
  }
}

}  // namespace cpu
}  // namespace annulus::kernels
