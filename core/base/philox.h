// Philox4x32-10, a counter-based random number generator: four 32-bit words for every 128-bit counter
// and 64-bit key, with no state, so that any element of any sample can be drawn alone, on any rank.
// J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011, https://doi.org/10.1145/2063384.2063405
#pragma once

#include <array>
#include <cstdint>

#include "core/base/host_device.h"

namespace annulus {

/// What a stream of random numbers is for. It is part of the key, so that two uses never share numbers.
enum class RandomPurpose : std::uint32_t {
  initialise = 1,
  shuffle = 2,
  augment = 3,
  dropout = 4,
  synthetic = 5
};

struct PhiloxBlock {
  std::uint32_t word[4];
};

/// The four words for (counter, key).
ANNULUS_HOST_DEVICE constexpr PhiloxBlock philox4x32_10(PhiloxBlock counter, std::uint32_t key0,
                                                        std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter.word[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = PhiloxBlock{{static_cast<std::uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0,
                           static_cast<std::uint32_t>(product1),
                           static_cast<std::uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1,
                           static_cast<std::uint32_t>(product0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

/// A sequence of random numbers keyed by (seed, purpose, a, b): for instance epoch and sample, or step
/// and layer. Value `index` of it is always the same, wherever and in whatever order it is asked for.
class Philox {
 public:
  ANNULUS_HOST_DEVICE constexpr Philox(std::uint64_t seed, RandomPurpose purpose, std::uint64_t a = 0,
                                       std::uint64_t b = 0)
      : a_(static_cast<std::uint32_t>(a)), b_(static_cast<std::uint32_t>(b)), key0_(0), key1_(0) {
    // The seed, the purpose and the high halves of a and b are hashed into the key.
    const PhiloxBlock key =
        philox4x32_10(PhiloxBlock{{static_cast<std::uint32_t>(purpose), static_cast<std::uint32_t>(a >> 32),
                                   static_cast<std::uint32_t>(b >> 32), 0u}},
                      static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
    key0_ = key.word[0];
    key1_ = key.word[1];
  }

  /// Words 4 * block .. 4 * block + 3 of the sequence.
  ANNULUS_HOST_DEVICE constexpr PhiloxBlock block(std::uint64_t block) const {
    return philox4x32_10(
        PhiloxBlock{{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), a_, b_}},
        key0_, key1_);
  }

  /// Word `index` of the sequence.
  ANNULUS_HOST_DEVICE constexpr std::uint32_t word(std::uint64_t index) const {
    return block(index / 4).word[index % 4];
  }

  /// Uniform in [0, 1): the top 24 bits of word `index`, every value exact in f32.
  ANNULUS_HOST_DEVICE constexpr float uniform(std::uint64_t index) const { return to_uniform(word(index)); }

  ANNULUS_HOST_DEVICE static constexpr float to_uniform(std::uint32_t word) {
    return static_cast<float>(word >> 8) * (1.0f / 16777216.0f);
  }

  /// Uniform integer in [0, bound), bound > 0, by multiply-shift of 32 bits: the bias is below
  /// bound / 2^32, which no sampler or crop here can notice.
  ANNULUS_HOST_DEVICE constexpr std::uint32_t below(std::uint64_t index, std::uint32_t bound) const {
    return static_cast<std::uint32_t>((std::uint64_t{word(index)} * bound) >> 32);
  }

 private:
  std::uint32_t a_, b_, key0_, key1_;
};

}  // namespace annulus
