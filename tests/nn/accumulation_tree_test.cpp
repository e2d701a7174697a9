#include "core/nn/accumulation_tree.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/base/philox.h"

namespace annulus {
namespace {

/// The sum that the tree promises: complete subtrees of aligned micro-batches, then the incomplete rest from
/// the smallest to the largest.
float expected_sum(const std::vector<float>& values) {
  std::vector<float> sums;  // of complete subtrees, largest first
  std::size_t begin = 0;
  for (std::size_t size = std::size_t{1} << 10; size > 0; size /= 2) {
    if ((values.size() & size) == 0) continue;
    std::vector<float> level(values.begin() + begin, values.begin() + begin + size);
    while (level.size() > 1) {
      for (std::size_t i = 0; i < level.size() / 2; ++i) level[i] = level[2 * i] + level[2 * i + 1];
      level.resize(level.size() / 2);
    }
    sums.push_back(level[0]);
    begin += size;
  }
  float sum = sums.back();
  for (std::size_t i = sums.size() - 1; i-- > 0;) sum = sums[i] + sum;
  return sum;
}

TEST(AccumulationTree, adds_adjacent_aligned_pairs_first) {
  ParameterArena arena({{.name = "b", .shape = {100}}, {.name = "a", .shape = {30}}}, Device::cpu());
  AccumulationTree tree(arena);
  const StreamView stream;
  // Sums of 1 to 17 micro-batches, up and down, so that levels left by an earlier sum would be noticed.
  for (const std::size_t micro_batches : {1, 2, 3, 4, 5, 6, 7, 8, 16, 17, 12, 3, 1, 9}) {
    tree.start(stream, micro_batches);
    std::vector<std::vector<float>> written(arena.elements());
    for (std::size_t i = 0; i < micro_batches; ++i) {
      float* target = tree.target(i);
      for (const ArenaSlice& slice : arena.slices())
        for (std::size_t e = slice.range.begin; e < slice.range.end; ++e) {
          // Numbers of all sizes: another order of adding would give other bits.
          const Philox random(micro_batches, RandomPurpose::synthetic, i);
          target[e] = (random.uniform(e) - 0.5f) * static_cast<float>(1 << (random.word(e) % 20));
          written[e].push_back(target[e]);
        }
      tree.carry(stream, i, {0, 192});
      tree.carry(stream, i, {192, arena.elements()});
    }
    const float* sums = arena.gradients().as<float>();
    for (std::size_t e = 0; e < arena.elements(); ++e)
      ASSERT_EQ(sums[e], written[e].empty() ? 0.0f : expected_sum(written[e]))
          << "element " << e << " of " << micro_batches << " micro-batches";
  }
}

TEST(AccumulationTree, six_are_added_as_documented) {
  const std::vector<float> v = {1e8f, 3, -1e8f, 5, 0.1f, 7};
  EXPECT_EQ(expected_sum(v), ((v[0] + v[1]) + (v[2] + v[3])) + (v[4] + v[5]));
}

}  // namespace
}  // namespace annulus
