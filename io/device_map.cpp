#include "io/device_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"

namespace annulus {
namespace {

constexpr std::string_view kForms =
    "write local, cpu, cuda, cuda:K, saved, or a map like cuda:0=cuda:1,cpu=local,*=local";

std::string_view take_until(std::string_view& text, char end) {
  const std::size_t at = text.find(end);
  const std::string_view head = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view() : text.substr(at + 1);
  return head;
}

std::string tags_of(std::span<const TensorRecord> tensors) {
  std::set<std::string> tags;
  for (const TensorRecord& tensor : tensors) tags.insert(tensor.device);
  return fmt::format("{}", fmt::join(tags, ", "));
}

}  // namespace

DeviceMap::Target DeviceMap::parse_target(std::string_view text, std::string_view whole) {
  if (text == "local") return {Target::Kind::local, {}};
  if (text == "cuda") return {Target::Kind::own_cuda, {}};
  if (text == "saved") return {Target::Kind::saved, {}};
  try {
    return {Target::Kind::device, Device::parse(text)};
  } catch (const ConfigError&) {
    fail<ConfigError>("device map \"{}\": \"{}\" is not a place for a tensor; {}", whole, text, kForms);
  }
}

DeviceMap DeviceMap::parse(std::string_view text) {
  DeviceMap map;
  if (text.find('=') == std::string_view::npos) {
    map.others_ = parse_target(text, text);
    return map;
  }
  map.others_.reset();
  std::string_view rest = text;
  while (!rest.empty()) {
    std::string_view target = take_until(rest, ',');
    require<ConfigError>(target.find('=') != std::string_view::npos,
                         "device map \"{}\": \"{}\" has no '='; {}", text, target, kForms);
    const std::string_view tag = take_until(target, '=');
    bool is_new = false;
    if (tag == "*") {
      is_new = !map.others_.has_value();
      map.others_ = parse_target(target, text);
    } else {
      const Target place = parse_target(tag, text);
      require<ConfigError>(place.kind == Target::Kind::device,
                           "device map \"{}\": \"{}\" is not a tag; tags are cpu, cuda:K and *", text, tag);
      is_new = map.targets_.emplace(place.device.to_string(), parse_target(target, text)).second;
    }
    require<ConfigError>(is_new, "device map \"{}\": \"{}\" is mapped twice", text, tag);
  }
  return map;
}

const DeviceMap::Target* DeviceMap::find(const std::string& tag) const {
  const auto found = targets_.find(tag);
  if (found != targets_.end()) return &found->second;
  return others_ ? &*others_ : nullptr;
}

std::vector<Device> DeviceMap::resolve(std::span<const TensorRecord> tensors, Device own,
                                       int cuda_devices) const {
  const auto resolve_one = [&](const TensorRecord& tensor) {
    const Target* target = find(tensor.device);
    require<ConfigError>(
        target != nullptr,
        "tensor \"{}\" was saved on {}, which device map \"{}\" does not cover; the tags in the "
        "checkpoint are {}: map each of them, or add *=local",
        tensor.name, tensor.device, to_string(), tags_of(tensors));
    if (target->kind == Target::Kind::local) return own;
    if (target->kind == Target::Kind::own_cuda) {
      require<DeviceError>(
          own.is_cuda(),
          "tensor \"{}\", saved on {}, is to go to this rank's CUDA device, but this rank runs on "
          "the CPU ({} CUDA devices visible); use map_location local or cpu",
          tensor.name, tensor.device, cuda_devices);
      return own;
    }
    const Device device = target->kind == Target::Kind::saved ? Device::parse(tensor.device) : target->device;
    require<DeviceError>(
        device.is_cpu() || device.ordinal < cuda_devices,
        "tensor \"{}\", saved on {}, is to go to {}, but this process sees {} CUDA devices; use "
        "map_location local, or map the tag to a device that is there",
        tensor.name, tensor.device, device.to_string(), cuda_devices);
    return device;
  };

  std::map<std::string_view, const TensorRecord*> by_name;
  for (const TensorRecord& tensor : tensors) by_name.emplace(tensor.name, &tensor);
  std::vector<Device> devices;
  for (const TensorRecord& tensor : tensors) {
    const auto parameter = by_name.find(tensor.of);
    devices.push_back(resolve_one(parameter == by_name.end() ? tensor : *parameter->second));
  }
  return devices;
}

bool DeviceMap::needs_rank() const {
  const auto of_rank = [](const Target& target) {
    return target.kind == Target::Kind::local || target.kind == Target::Kind::own_cuda;
  };
  return (others_ && of_rank(*others_)) ||
         std::ranges::any_of(targets_, [&](const auto& entry) { return of_rank(entry.second); });
}

std::string DeviceMap::to_string(const Target& target) {
  switch (target.kind) {
    case Target::Kind::local:
      return "local";
    case Target::Kind::own_cuda:
      return "cuda";
    case Target::Kind::saved:
      return "saved";
    case Target::Kind::device:
      break;
  }
  return target.device.to_string();
}

std::string DeviceMap::to_string() const {
  if (targets_.empty()) return to_string(*others_);
  std::vector<std::string> entries;
  for (const auto& [tag, target] : targets_) entries.push_back(fmt::format("{}={}", tag, to_string(target)));
  if (others_) entries.push_back(fmt::format("*={}", to_string(*others_)));
  return fmt::format("{}", fmt::join(entries, ","));
}

}  // namespace annulus
