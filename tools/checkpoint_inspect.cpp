#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "io/checkpoint.h"
#include "tools/checkpoint_commands.h"

namespace annulus {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const AttributeValue& value) {
  return std::visit([](const auto& stored) { return Json(stored); }, value);
}

Json to_json(const CheckpointReader& reader) {
  Json json;
  json["path"] = reader.path().string();
  json["format_version"] = reader.format_version();
  json["engine_version"] = reader.engine_version();
  json["file_bytes"] = reader.file_bytes();
  Json& attributes = json["attributes"] = Json::object();
  for (const auto& [name, value] : reader.attributes()) attributes[name] = to_json(value);
  Json& tensors = json["tensors"] = Json::array();
  for (const TensorRecord& record : reader.tensors())
    tensors.push_back({{"name", record.name},
                       {"role", name_of(record.role)},
                       {"of", record.of},
                       {"dtype", name_of(record.dtype)},
                       {"shape", record.shape},
                       {"bytes", record.bytes()},
                       {"offset", record.offset},
                       {"crc32c", fmt::format("{:08x}", record.crc32c)},
                       {"device", record.device},
                       {"host", record.provenance.host},
                       {"device_name", record.provenance.device_name},
                       {"device_uuid", record.provenance.device_uuid},
                       {"rank", record.provenance.rank}});
  return json;
}

// Powers of ten, as disks and file managers count.
std::string size_text(std::uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  double size = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* next : {"KB", "MB", "GB", "TB"}) {
    if (size < 999.95) break;
    size /= 1000;
    unit = next;
  }
  return fmt::format("{:.1f} {}", size, unit);
}

std::string count_text(std::size_t tensors) {
  return tensors == 1 ? "1 tensor" : fmt::format("{} tensors", tensors);
}

void print_tensors(const char* title, const std::vector<const TensorRecord*>& records) {
  std::uint64_t bytes = 0;
  std::size_t name_width = 0, shape_width = 0;
  std::vector<std::string> shapes;
  for (const TensorRecord* record : records) {
    bytes += record->bytes();
    shapes.push_back(fmt::format("[{}]", fmt::join(record->shape, ", ")));
    name_width = std::max(name_width, record->name.size());
    shape_width = std::max(shape_width, shapes.back().size());
  }
  fmt::print("{}: {}, {}\n", title, count_text(records.size()), size_text(bytes));
  for (std::size_t i = 0; i < records.size(); ++i) {
    const TensorRecord& record = *records[i];
    const std::string belongs = record.of.empty() ? "" : fmt::format(" of {}", record.of);
    fmt::print("  {:{}}  {:4}  {:{}}  {:>8}  {:6}  {}{}\n", record.name, name_width, name_of(record.dtype),
               shapes[i], shape_width, size_text(record.bytes()), record.device, name_of(record.role),
               belongs);
  }
}

void print_devices(std::span<const TensorRecord> records) {
  std::map<std::string, std::size_t> counts;
  for (const TensorRecord& record : records) {
    const Provenance& provenance = record.provenance;
    std::string line =
        fmt::format("{}, written on {} by rank {}", record.device,
                    provenance.host.empty() ? "an unknown host" : provenance.host, provenance.rank);
    for (const std::string* more : {&provenance.device_name, &provenance.device_uuid})
      if (!more->empty()) line += fmt::format(", {}", *more);
    ++counts[line];
  }
  fmt::print("devices\n");
  for (const auto& [line, count] : counts) fmt::print("  {}: {}\n", line, count_text(count));
}

}  // namespace

void inspect_checkpoint(const std::filesystem::path& path, bool as_json) {
  const CheckpointReader reader(path);
  if (as_json) {
    fmt::print("{}\n", to_json(reader).dump(2));
    return;
  }
  fmt::print("{}: checkpoint of format {}, written by Annulus {}, {}\n", path.string(),
             reader.format_version(), reader.engine_version(), size_text(reader.file_bytes()));
  fmt::print("training\n");
  for (const auto& [name, value] : reader.attributes())
    fmt::print("  {} = {}\n", name, to_json(value).dump());
  std::vector<const TensorRecord*> model, optimizer;
  for (const TensorRecord& record : reader.tensors())
    (record.role == TensorRole::optimizer_state ? optimizer : model).push_back(&record);
  print_tensors("model", model);
  print_tensors("optimizer", optimizer);
  print_devices(reader.tensors());
}

bool verify_checkpoints(const std::vector<std::filesystem::path>& paths) {
  bool all_whole = true;
  for (const std::filesystem::path& path : paths) {
    try {
      const CheckpointReader reader(path);
      reader.verify();
      fmt::print("{}: whole, {}, {}\n", path.string(), count_text(reader.tensors().size()),
                 size_text(reader.file_bytes()));
    } catch (const Error& error) {
      fmt::print(stderr, "{}\n", error.what());
      all_whole = false;
    }
  }
  return all_whole;
}

}  // namespace annulus
