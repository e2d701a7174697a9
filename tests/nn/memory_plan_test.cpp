#include "core/nn/memory_plan.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "core/base/philox.h"

namespace annulus {
namespace {

TEST(MemoryPlan, tensors_that_live_one_after_another_share_memory) {
  MemoryPlan plan;
  const PlannedTensor a = plan.add({100});
  plan.next_operation();
  const PlannedTensor b = plan.add({100});
  plan.use(a);
  plan.next_operation();
  const PlannedTensor c = plan.add({100});
  plan.use(b);
  plan.place();
  const auto address = [&](const PlannedTensor& tensor) {
    return plan.at(tensor, nullptr, Device::cpu()).data();
  };
  EXPECT_EQ(address(a), address(c));
  EXPECT_NE(address(a), address(b));
  EXPECT_EQ(plan.bytes(), 2 * 512u);  // 400 bytes, rounded to 256
}

TEST(MemoryPlan, an_empty_tensor_stays_empty) {
  MemoryPlan plan;
  plan.use(PlannedTensor());
  plan.place();
  EXPECT_EQ(plan.bytes(), 0u);
  EXPECT_TRUE(plan.at(PlannedTensor(), nullptr, Device::cpu()).empty());
}

TEST(MemoryPlan, a_tensor_within_a_turn_of_a_loop_has_the_memory_of_one_tile) {
  MemoryPlan plan;
  plan.begin_loop(4);
  const PlannedTensor passing = plan.add({400}, DType::u8);
  plan.next_operation();
  const PlannedTensor staying = plan.add({400}, DType::u8);  // read after the loop
  plan.use(passing);
  plan.next_operation();
  plan.end_loop();
  const PlannedTensor after = plan.add({400}, DType::u8);
  plan.use(staying);
  plan.place();
  const auto address = [&](const PlannedTensor& tensor, std::size_t tile) {
    return plan.at(tensor, nullptr, Device::cpu(), tile).as<std::uint8_t>();
  };
  EXPECT_EQ(address(passing, 0), address(passing, 3));
  EXPECT_EQ(address(staying, 3) - address(staying, 0), 3 * 400);
  EXPECT_EQ(address(after, 0), address(passing, 0));
  // The second turn must not write into what the first has left.
  EXPECT_TRUE(address(passing, 0) >= address(staying, 3) + 400 ||
              address(passing, 0) + 400 <= address(staying, 0));
  EXPECT_EQ(plan.bytes(), 7 * 256u + 512u);  // 1600 bytes and 400, rounded to 256
}

TEST(MemoryPlan, tensors_that_live_at_once_never_overlap) {
  for (std::uint64_t round = 0; round < 50; ++round) {
    const Philox random(round, RandomPurpose::synthetic);
    std::uint64_t drawn = 0;
    struct Life {
      PlannedTensor tensor;
      std::size_t first, last;
    };
    MemoryPlan plan;
    std::vector<Life> lives;
    for (std::size_t now = 0; now < 30; ++now) {
      for (Life& life : lives)
        if (life.last + 1 >= now && random.below(drawn++, 3) != 0) {
          plan.use(life.tensor);
          life.last = now;
        }
      const DType dtype = random.below(drawn++, 2) == 0 ? DType::f32 : DType::u8;
      lives.push_back({plan.add({random.below(drawn++, 1000) + 1}, dtype), now, now});
      plan.next_operation();
    }
    plan.place();

    std::size_t live_bytes = 0;  // no plan can do with less
    for (const Life& a : lives) {
      const auto begin = [&](const Life& life) {
        return reinterpret_cast<std::uintptr_t>(plan.at(life.tensor, nullptr, Device::cpu()).data());
      };
      const auto end = [&](const Life& life) {
        return begin(life) + plan.at(life.tensor, nullptr, Device::cpu()).bytes();
      };
      EXPECT_EQ(begin(a) % 256, 0u);
      EXPECT_LE(end(a), plan.bytes());
      std::size_t together = 0;
      for (const Life& b : lives) {
        if (a.first < b.first || b.last < a.first) continue;  // b is not alive when a starts
        together += end(b) - begin(b);
        if (a.tensor.block == b.tensor.block) continue;
        EXPECT_TRUE(end(a) <= begin(b) || end(b) <= begin(a)) << "round " << round;
      }
      live_bytes = std::max(live_bytes, together);
    }
    EXPECT_LE(plan.bytes(), 2 * live_bytes) << "round " << round;
  }
}

}  // namespace
}  // namespace annulus
