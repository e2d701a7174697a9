// main() of the tests that run on every device there is. With ANNULUS_TEST_DEVICE=cuda they run on the first
// GPU alone, and where there is none they end with kNoDevice, which ctest reports as skipped.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/support/device_array.h"

int main(int argc, char** argv) {
  constexpr int kNoDevice = 77;
  if (annulus::test::cuda_only() && annulus::cuda_device_count() == 0) {
    std::printf("skipped: %s\n", annulus::cuda_unavailable_reason().c_str());
    return kNoDevice;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
