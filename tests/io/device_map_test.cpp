#include "io/device_map.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/support/expect_error.h"

namespace annulus {
namespace {

using test::expect_error;

TensorRecord record(const std::string& name, const std::string& tag, const std::string& of = {}) {
  TensorRecord result;
  result.name = name;
  result.device = tag;
  result.of = of;
  result.role = of.empty() ? TensorRole::parameter : TensorRole::optimizer_state;
  return result;
}

const std::vector<TensorRecord> kTensors = {record("a", "cpu"), record("b", "cuda:0"), record("c", "cuda:1")};

std::vector<std::string> resolve(const std::string& map, Device own, int devices,
                                 const std::vector<TensorRecord>& tensors = kTensors) {
  std::vector<std::string> names;
  for (const Device device : DeviceMap::parse(map).resolve(tensors, own, devices))
    names.push_back(device.to_string());
  return names;
}

using Names = std::vector<std::string>;

TEST(DeviceMap, ResolvesEveryForm) {
  const Device second = Device::cuda(1);
  EXPECT_EQ(resolve("local", second, 2), Names({"cuda:1", "cuda:1", "cuda:1"}));
  EXPECT_EQ(resolve("local", Device::cpu(), 0), Names({"cpu", "cpu", "cpu"}));
  EXPECT_EQ(resolve("cpu", second, 2), Names({"cpu", "cpu", "cpu"}));
  EXPECT_EQ(resolve("cuda", second, 2), Names({"cuda:1", "cuda:1", "cuda:1"}));
  EXPECT_EQ(resolve("cuda:0", second, 2), Names({"cuda:0", "cuda:0", "cuda:0"}));
  EXPECT_EQ(resolve("saved", second, 2), Names({"cpu", "cuda:0", "cuda:1"}));
  EXPECT_EQ(resolve("cuda:0=cuda:1,cuda:1=cpu,*=local", second, 2), Names({"cuda:1", "cuda:1", "cpu"}));
  EXPECT_EQ(resolve("cpu=cuda,*=saved", second, 2), Names({"cuda:1", "cuda:0", "cuda:1"}));
  EXPECT_EQ(DeviceMap().resolve(kTensors, second, 2), DeviceMap::parse("local").resolve(kTensors, second, 2));
}

TEST(DeviceMap, KeepsOptimizerStateWithItsParameter) {
  const std::vector<TensorRecord> tensors = {record("w.momentum", "cpu", "w"), record("w", "cuda:1")};
  EXPECT_EQ(resolve("saved", Device::cpu(), 2, tensors), Names({"cuda:1", "cuda:1"}));
  EXPECT_EQ(resolve("cuda:1=cuda:0,cpu=cpu", Device::cpu(), 2, tensors), Names({"cuda:0", "cuda:0"}));
}

TEST(DeviceMap, ListsTheTagsWhenOneIsNotCovered) {
  expect_error<ConfigError>(
      [] {
        (void)resolve("cuda:0=cpu", Device::cpu(), 0, {record("b", "cuda:0"), record("w", "cuda:3")});
      },
      {"\"w\"", "cuda:3", "cuda:0, cuda:3", "*=local"});
}

TEST(DeviceMap, NamesTensorTagAndDeviceCountWhenADeviceIsMissing) {
  expect_error<DeviceError>([] { (void)resolve("saved", Device::cuda(0), 1); },
                            {"\"c\"", "cuda:1", "sees 1 CUDA devices", "map_location local"});
  expect_error<DeviceError>([] { (void)resolve("cuda:4", Device::cuda(0), 2); }, {"\"a\"", "cuda:4", "2"});
  expect_error<DeviceError>([] { (void)resolve("cuda", Device::cpu(), 3); }, {"\"a\"", "runs on the CPU"});
}

TEST(DeviceMap, PrintsWhatItReads) {
  for (const char* text :
       {"local", "cpu", "cuda", "cuda:3", "saved", "cpu=cuda,cuda:0=cuda:1,*=local", "cuda:0=saved"})
    EXPECT_EQ(DeviceMap::parse(text).to_string(), text);
}

TEST(DeviceMap, RefusesWhatItDoesNotUnderstand) {
  for (const char* text : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:0=", "=cpu", "cuda:0=gpu",
                           "cuda=cpu", "saved=cpu", "cpu,cuda:0=cpu", "cuda:0=cpu,cuda:1"})
    expect_error<ConfigError>([&] { (void)DeviceMap::parse(text); }, {"device map"});
  expect_error<ConfigError>([] { (void)DeviceMap::parse("cpu=cpu,cpu=local"); }, {"cpu\" is mapped twice"});
  expect_error<ConfigError>([] { (void)DeviceMap::parse("*=cpu,*=local"); }, {"*\" is mapped twice"});
}

}  // namespace
}  // namespace annulus
