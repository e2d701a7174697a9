#include "core/base/graph.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

TEST(Graph, is_for_cuda_devices) {
  EXPECT_FALSE(Graph());
  test::expect_error<DeviceError>([] { Graph::capture(StreamView(), [] {}); },
                                  {"only work of CUDA devices can be captured, not of cpu"});
}

}  // namespace
}  // namespace annulus
