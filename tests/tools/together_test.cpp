#include "tools/together.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "nccl/in_memory_communicator.h"

namespace annulus {
namespace {

void run_ranks(int world_size, const std::function<void(Communicator&)>& body) {
  auto communicators = make_in_memory_communicators(world_size);
  std::vector<std::thread> threads;
  for (auto& communicator : communicators) threads.emplace_back([&] { body(*communicator); });
  for (std::thread& thread : threads) thread.join();
}

TEST(Together, OneRankReportsAndTheOthersFollow) {
  for (const int failing : {0, 1, 2}) {
    std::atomic<int> reports = 0, relayed = 0;
    run_ranks(3, [&](Communicator& communicator) {
      try {
        together(communicator, [&] {
          // The last one fails as well: still one report.
          if (communicator.rank() == failing || communicator.rank() == 2) {
            fail<DataError>("rank {}", communicator.rank());
          }
        });
        ADD_FAILURE() << "did not throw";
      } catch (const RelayedError&) {
        ++relayed;
      } catch (const DataError& error) {
        EXPECT_EQ(error.what(), "rank " + std::to_string(failing));
        ++reports;
      }
    });
    EXPECT_EQ(reports, 1);
    EXPECT_EQ(relayed, 2);
  }
}

TEST(Together, GoesOnAfterSuccess) {
  run_ranks(2, [](Communicator& communicator) {
    for (int i = 0; i < 3; ++i) together(communicator, [] {});
    EXPECT_EQ(broadcast_text(communicator, communicator.rank() == 0 ? "a text" : "another"), "a text");
    EXPECT_EQ(broadcast_text(communicator, communicator.rank() == 0 ? "" : "another"), "");
    EXPECT_FALSE(any_rank(communicator, false));
    EXPECT_TRUE(any_rank(communicator, communicator.rank() == 1));
  });
}

}  // namespace
}  // namespace annulus
