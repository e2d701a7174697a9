#include "io/checkpoint.h"

#include <utility>

#include "core/base/error.h"
#include "io/host_name.h"

namespace annulus {

std::string_view name_of(TensorRole role) {
  switch (role) {
    case TensorRole::parameter:
      return "parameter";
    case TensorRole::buffer:
      return "buffer";
    case TensorRole::optimizer_state:
      return "optimizer_state";
  }
  fail<CheckpointError>("unknown tensor role {}", static_cast<int>(role));
}

Provenance local_provenance(Device device, int rank) {
  const DeviceIdentity identity = identify(device);
  return {host_name(), identity.name, identity.uuid, rank};
}

std::uint64_t TensorRecord::elements() const {
  std::uint64_t count = 1;
  for (const std::size_t extent : shape) count *= extent;
  return count;
}

std::uint64_t TensorRecord::bytes() const { return elements() * size_of(dtype); }

TensorToSave tensor_to_save(std::string name, TensorRole role, Tensor data, const Provenance& provenance,
                            std::string of) {
  TensorRecord record;
  record.name = std::move(name);
  record.role = role;
  record.of = std::move(of);
  record.dtype = data.dtype();
  record.shape.assign(data.shape().begin(), data.shape().end());
  record.device = data.device().to_string();
  record.provenance = provenance;
  return {std::move(record), data};
}

}  // namespace annulus
