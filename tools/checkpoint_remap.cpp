#include <limits>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/error.h"
#include "io/checkpoint.h"
#include "io/device_map.h"
#include "tools/checkpoint_commands.h"
#include "tools/checkpoint_output.h"

namespace annulus {
namespace {

// Tags are text here, so any number of devices will do, and each tensor goes by its own tag.
std::vector<Device> new_tags(std::span<const TensorRecord> tensors, std::string_view text) {
  const DeviceMap map = DeviceMap::parse(text);
  require<ConfigError>(
      !map.needs_rank(),
      "device map \"{}\": local and cuda stand for a rank's own device, and there is no rank "
      "here; write cpu, cuda:K or saved",
      text);
  std::vector<TensorRecord> records(tensors.begin(), tensors.end());
  for (TensorRecord& record : records) record.of.clear();
  return map.resolve(records, Device{}, std::numeric_limits<int>::max());
}

}  // namespace

void remap_checkpoint(const std::filesystem::path& in, const std::filesystem::path& out,
                      std::string_view map) {
  const CheckpointReader reader(in);
  const std::vector<Device> tags = new_tags(reader.tensors(), map);
  std::vector<Buffer> memory;
  std::vector<TensorToLoad> loads;
  std::vector<TensorToSave> saves;
  for (std::size_t i = 0; i < tags.size(); ++i) {
    TensorRecord record = reader.tensors()[i];
    memory.emplace_back(Device{}, record.bytes());
    const Tensor elements(memory.back().data(), Shape(record.shape.data(), record.shape.size()), record.dtype,
                          Device{});
    loads.push_back({record.name, elements});
    if (record.device != tags[i].to_string()) {
      record.device = tags[i].to_string();
      record.provenance = {"", "", "", record.provenance.rank};
    }
    saves.push_back({std::move(record), elements});
  }
  write_new_file(out, [&](const std::filesystem::path& temporary) {
    reader.load(loads);
    write_checkpoint(temporary, saves, reader.attributes());
    CheckpointReader(temporary).verify();
  });
}

}  // namespace annulus
