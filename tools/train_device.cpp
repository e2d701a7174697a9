#include "tools/train_device.h"

#include <vector>

#include "core/base/error.h"
#include "io/device_map.h"

namespace annulus {

DeviceChoice choose_device(const TrainOptions& options, const RankEnvironment& environment) {
  if (options.device == "cpu") return {};
  const int devices = cuda_device_count();
  if (environment.local_world_size <= devices) return {Device::cuda(environment.local_rank), {}};
  const std::string shortage =
      devices == 0 ? cuda_unavailable_reason()
                   : fmt::format("{} ranks on this host, but only {} CUDA device{}",
                                 environment.local_world_size, devices, devices == 1 ? "" : "s");
  require<DeviceError>(options.device == "auto", "--device cuda is not possible here: {}", shortage);
  return {Device::cpu(), "training on the CPU: " + shortage};
}

Device map_device(const TrainOptions& options, std::span<const TensorRecord> tensors, Device own) {
  const std::vector<Device> devices =
      DeviceMap::parse(options.map_location).resolve(tensors, own, cuda_device_count());
  for (std::size_t i = 1; i < devices.size(); ++i) {
    require<ConfigError>(
        devices[i] == devices[0],
        "--map-location {} sends {} to {} and {} to {}, but a rank keeps its model on one device",
        options.map_location, tensors[0].name, devices[0].to_string(), tensors[i].name,
        devices[i].to_string());
  }
  return devices.empty() ? own : devices[0];
}

}  // namespace annulus
