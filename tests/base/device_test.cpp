#include "core/base/device.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

TEST(Device, ParsesWhatItPrints) {
  for (const Device device : {Device::cpu(), Device::cuda(0), Device::cuda(17)})
    EXPECT_EQ(Device::parse(device.to_string()), device);
  EXPECT_EQ(Device::cpu().to_string(), "cpu");
  EXPECT_EQ(Device::cuda(3).to_string(), "cuda:3");
}

TEST(Device, IsTheCpuUnlessSaidOtherwise) {
  EXPECT_TRUE(Device().is_cpu());
  EXPECT_FALSE(Device().is_cuda());
  EXPECT_TRUE(Device::cuda(0).is_cuda());
  EXPECT_NE(Device::cuda(0), Device::cuda(1));
}

TEST(Device, RefusesAnythingElse) {
  for (const char* text : {"", "CPU", "cpu:0", "gpu", "cuda", "cuda:", "cuda:-1", "cuda:1x", "cuda: 1",
                           "cuda:0x1", "cuda:99999999999"})
    test::expect_error<ConfigError>([&] { (void)Device::parse(text); }, {text, "cuda:K"});
}

TEST(Device, SaysWhyThereIsNoCudaDevice) {
  EXPECT_EQ(cuda_device_count() == 0, !cuda_unavailable_reason().empty());
}

TEST(DeviceGuard, DoesNothingForTheCpu) {
  const DeviceGuard outer{Device::cpu()};
  const DeviceGuard inner{Device::cpu()};
}

TEST(DeviceGuard, RefusesADeviceThatDoesNotExist) {
  EXPECT_THROW(DeviceGuard guard(Device::cuda(cuda_device_count())), DeviceError);
}

}  // namespace
}  // namespace annulus
