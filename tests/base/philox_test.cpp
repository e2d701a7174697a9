#include "core/base/philox.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>

namespace annulus {
namespace {

// The known answers for philox4x32-10 that its authors publish with Random123 (kat_vectors).
TEST(Philox, GivesThePublishedAnswers) {
  struct Answer {
    PhiloxBlock counter;
    std::uint32_t key0, key1;
    PhiloxBlock result;
  };
  constexpr Answer kAnswers[] = {
      {{{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
      {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
       0xffffffff,
       0xffffffff,
       {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
      {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
       0xa4093822,
       0x299f31d0,
       {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
  };
  for (const Answer& answer : kAnswers) {
    const PhiloxBlock result = philox4x32_10(answer.counter, answer.key0, answer.key1);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(result.word[i], answer.result.word[i]) << "word " << i;
  }
}

TEST(Philox, ComputesAtCompileTime) {
  static_assert(philox4x32_10(PhiloxBlock{}, 0, 0).word[0] == 0x6627e8d5);
  static_assert(Philox(1, RandomPurpose::shuffle).word(5) ==
                Philox(1, RandomPurpose::shuffle).block(1).word[1]);
}

TEST(Philox, KeepsItsSequencesForEver) {
  // Checkpoints resume with these numbers: a change of them is a change of every run.
  const Philox philox(42, RandomPurpose::augment, 3, 7);
  const std::uint32_t first[] = {philox.word(0), philox.word(1), philox.word(2), philox.word(3)};
  const std::uint32_t expected[] = {0xe3384b0e, 0xf6aeb6ec, 0xd69b23ff, 0x5e058f92};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(first[i], expected[i]) << "word " << i;
}

TEST(Philox, EveryPartOfTheKeyMatters) {
  const std::uint64_t high = std::uint64_t{1} << 32;
  std::set<std::uint32_t> words;
  int sequences = 0;
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, high})
    for (const RandomPurpose purpose : {RandomPurpose::initialise, RandomPurpose::shuffle})
      for (const std::uint64_t a : {std::uint64_t{0}, std::uint64_t{1}, high})
        for (const std::uint64_t b : {std::uint64_t{0}, std::uint64_t{1}, high}) {
          words.insert(Philox(seed, purpose, a, b).word(0));
          ++sequences;
        }
  EXPECT_EQ(words.size(), static_cast<std::size_t>(sequences));
}

TEST(Philox, TheBlockCounterHas64Bits) {
  const Philox philox(1, RandomPurpose::dropout);
  EXPECT_NE(philox.word(0), philox.word(std::uint64_t{4} << 32));
}

TEST(Philox, UniformIsExactAndBelowOne) {
  EXPECT_EQ(Philox::to_uniform(0), 0.0f);
  EXPECT_EQ(Philox::to_uniform(0xff), 0.0f);
  EXPECT_EQ(Philox::to_uniform(0x80000000u), 0.5f);
  EXPECT_EQ(Philox::to_uniform(0xffffffffu), 1.0f - 1.0f / 16777216.0f);
}

TEST(Philox, UniformAndBelowAreSpreadEvenly) {
  const Philox philox(7, RandomPurpose::augment);
  constexpr int kDraws = 100000, kBound = 10;
  int counts[kBound] = {};
  double sum = 0;
  for (int i = 0; i < kDraws; ++i) {
    sum += philox.uniform(static_cast<std::uint64_t>(i));
    ++counts[philox.below(static_cast<std::uint64_t>(i), kBound)];
  }
  // Six standard deviations: of the mean of uniforms, and of a count.
  EXPECT_NEAR(sum / kDraws, 0.5, 6 * 0.2887 / 316.2);
  for (const int count : counts) EXPECT_NEAR(count, kDraws / kBound, 6 * 94.9);
}

TEST(Philox, BelowOneIsZero) { EXPECT_EQ(Philox(7, RandomPurpose::augment).below(123, 1), 0u); }

}  // namespace
}  // namespace annulus
