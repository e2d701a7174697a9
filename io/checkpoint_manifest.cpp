#include "io/checkpoint_manifest.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/base/error.h"

namespace annulus {
namespace {

using Json = nlohmann::ordered_json;

// Bounds that keep every attribute within what an HDF5 object header holds (64 KiB a message).
constexpr std::size_t kMaxNameBytes = 1024;
constexpr std::size_t kMaxTextBytes = 32768;

constexpr std::array kRoles = {TensorRole::parameter, TensorRole::buffer, TensorRole::optimizer_state};

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

// Names go into messages and onto terminals, so they have no control characters.
bool is_name(std::string_view text) {
  return text.size() <= kMaxNameBytes && std::none_of(text.begin(), text.end(), is_control);
}

// Messages that may quote a file.
std::string printable(std::string message) {
  std::replace_if(message.begin(), message.end(), is_control, '?');
  return message;
}

bool is_device_tag(const std::string& tag) {
  try {
    return Device::parse(tag).to_string() == tag;
  } catch (const ConfigError&) {
    return false;
  }
}

void check_record(const std::filesystem::path& path, const TensorRecord& record) {
  require<CheckpointError>(is_name(record.name) && !record.name.empty(),
                           "{}: the name of a tensor must have 1 to {} bytes and no control characters",
                           path.string(), kMaxNameBytes);
  const std::string where = describe(path, record.name);
  for (const std::string* text :
       {&record.of, &record.provenance.host, &record.provenance.device_name, &record.provenance.device_uuid})
    require<CheckpointError>(is_name(*text), "{}: names must have at most {} bytes and no control characters",
                             where, kMaxNameBytes);
  require<CheckpointError>(record.shape.size() <= TensorRecord::kMaxRank,
                           "{}: has {} dimensions; the format allows {}", where, record.shape.size(),
                           TensorRecord::kMaxRank);
  std::uint64_t bytes = size_of(record.dtype);
  bool fits = true;
  for (const std::size_t extent : record.shape) {
    // Zero extents count as one here: the others must make sense without them.
    fits = fits && !__builtin_mul_overflow(bytes, std::max<std::uint64_t>(extent, 1), &bytes);
  }
  require<CheckpointError>(fits && bytes <= INT64_MAX, "{}: its extents multiply to more than a file holds",
                           where);
  require<CheckpointError>(is_device_tag(record.device),
                           "{}: its device tag is \"{}\"; expected cpu or cuda:K", where, record.device);
}

template <class T>
T value(const Json& object, const char* key) {
  return object.at(key).get<T>();
}

// Optional texts are left out when empty.
std::string text_or_empty(const Json& object, const char* key) {
  return object.contains(key) ? value<std::string>(object, key) : std::string();
}

void put_text(Json& object, const char* key, const std::string& text) {
  if (!text.empty()) object[key] = text;
}

// get<integer>() would round and wrap silently.
template <class T>
T whole_number(const Json& number) {
  const bool negative = number.is_number_integer() && !number.is_number_unsigned();
  const bool fits = negative ? std::in_range<T>(number.get<std::int64_t>())
                             : number.is_number_unsigned() && std::in_range<T>(number.get<std::uint64_t>());
  require<CheckpointError>(fits, "{} is not a whole number in range", number.dump());
  return number.get<T>();
}

std::uint32_t hexadecimal(const std::string& text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  require<CheckpointError>(text.size() == 8 && error == std::errc() && end == text.data() + 8,
                           "\"{}\" is not a checksum of 8 hexadecimal digits", text);
  return number;
}

TensorRole parse_role(const std::string& text) {
  for (const TensorRole role : kRoles)
    if (text == name_of(role)) return role;
  fail<CheckpointError>("unknown role \"{}\"", text);
}

Json to_json(const TensorRecord& record) {
  Json json;
  json["name"] = record.name;
  json["role"] = name_of(record.role);
  put_text(json, "of", record.of);
  json["dtype"] = name_of(record.dtype);
  json["shape"] = record.shape;
  json["offset"] = record.offset;
  json["crc32c"] = fmt::format("{:08x}", record.crc32c);
  json["device"] = record.device;
  put_text(json, "host", record.provenance.host);
  put_text(json, "device_name", record.provenance.device_name);
  put_text(json, "device_uuid", record.provenance.device_uuid);
  json["rank"] = record.provenance.rank;
  return json;
}

TensorRecord parse_record(const Json& json) {
  TensorRecord record;
  record.name = value<std::string>(json, "name");
  record.role = parse_role(value<std::string>(json, "role"));
  record.of = text_or_empty(json, "of");
  record.dtype = parse_dtype(value<std::string>(json, "dtype"));
  for (const Json& extent : json.at("shape").get_ref<const Json::array_t&>())
    record.shape.push_back(whole_number<std::size_t>(extent));
  record.offset = whole_number<std::uint64_t>(json.at("offset"));
  record.crc32c = hexadecimal(value<std::string>(json, "crc32c"));
  record.device = value<std::string>(json, "device");
  record.provenance = {text_or_empty(json, "host"), text_or_empty(json, "device_name"),
                       text_or_empty(json, "device_uuid"), whole_number<int>(json.at("rank"))};
  return record;
}

AttributeValue parse_attribute(const Json& json) {
  if (json.is_string()) return json.get<std::string>();
  if (json.is_number_float()) return json.get<double>();
  return whole_number<std::int64_t>(json);
}

// The manifest is flat, so anything deep is hostile, and would cost far more memory than text.
bool refuse_depth(int depth, Json::parse_event_t, Json&) {
  require<CheckpointError>(depth <= 4, "its JSON is nested too deeply");
  return true;
}

}  // namespace

void check_records(const std::filesystem::path& path, std::span<const TensorRecord> tensors) {
  std::set<std::string_view> names, parameters;
  for (const TensorRecord& record : tensors) {
    check_record(path, record);
    require<CheckpointError>(names.insert(record.name).second, "{}: is there twice",
                             describe(path, record.name));
    if (record.role == TensorRole::parameter) parameters.insert(record.name);
  }
  for (const TensorRecord& record : tensors) {
    require<CheckpointError>(record.of.empty() || record.role == TensorRole::optimizer_state,
                             "{}: only optimizer state can belong to a parameter",
                             describe(path, record.name));
    require<CheckpointError>(record.of.empty() || parameters.contains(record.of),
                             "{}: belongs to parameter \"{}\", which is not there",
                             describe(path, record.name), record.of);
  }
}

void check_attributes(const std::filesystem::path& path, const Attributes& attributes) {
  for (const auto& [name, attribute] : attributes) {
    require<CheckpointError>(is_name(name) && !name.empty(),
                             "{}: the name of an attribute must have 1 to {} bytes and no control characters",
                             path.string(), kMaxNameBytes);
    if (const auto* text = std::get_if<std::string>(&attribute))
      require<CheckpointError>(text->size() <= kMaxTextBytes && text->find('\0') == std::string::npos,
                               "{}: attribute \"{}\": texts must have at most {} bytes and no zero byte",
                               path.string(), name, kMaxTextBytes);
    if (const auto* number = std::get_if<double>(&attribute))
      require<CheckpointError>(std::isfinite(*number), "{}: attribute \"{}\" is {}; expected a finite number",
                               path.string(), name, *number);
  }
}

std::string to_json(const std::filesystem::path& path, const Manifest& manifest) {
  Json json;
  json["format"] = kCheckpointFormat;
  json["version"] = kCheckpointVersion;
  json["engine_version"] = manifest.engine_version;
  Json& attributes = json["attributes"] = Json::object();
  for (const auto& [name, attribute] : manifest.attributes)
    std::visit([&json = attributes[name]](const auto& stored) { json = stored; }, attribute);
  Json& tensors = json["tensors"] = Json::array();
  for (const TensorRecord& record : manifest.tensors) tensors.push_back(to_json(record));
  try {
    return json.dump();
  } catch (const Json::exception& error) {
    fail<CheckpointError>("{}: names and attributes must be UTF-8: {}", path.string(), error.what());
  }
}

Manifest parse_manifest(const std::filesystem::path& path, std::string_view text) {
  Manifest manifest;
  try {
    const Json json = Json::parse(text, refuse_depth);
    require<CheckpointError>(value<std::string>(json, "format") == kCheckpointFormat &&
                                 whole_number<std::int64_t>(json.at("version")) == kCheckpointVersion,
                             "it is of another format or version than the file");
    manifest.engine_version = value<std::string>(json, "engine_version");
    for (const auto& [name, attribute] : json.at("attributes").get_ref<const Json::object_t&>())
      manifest.attributes[name] = parse_attribute(attribute);
    for (const Json& tensor : json.at("tensors").get_ref<const Json::array_t&>())
      manifest.tensors.push_back(parse_record(tensor));
  } catch (const Json::exception& error) {
    fail<CheckpointError>("{}: the manifest is damaged: {}", path.string(), printable(error.what()));
  } catch (const Error& error) {
    fail<CheckpointError>("{}: the manifest is damaged: {}", path.string(), printable(error.what()));
  }
  check_records(path, manifest.tensors);
  check_attributes(path, manifest.attributes);
  return manifest;
}

std::string link_name(std::string_view tensor_name) {
  if (tensor_name == ".") return "%2E";
  std::string link;
  for (const char c : tensor_name) {
    if (c == '%')
      link += "%25";
    else if (c == '/')
      link += "%2F";
    else
      link += c;
  }
  return link;
}

std::string_view group_of(TensorRole role) {
  return role == TensorRole::optimizer_state ? "optimizer" : "model";
}

std::string describe(const std::filesystem::path& path, std::string_view tensor_name) {
  return fmt::format("{}: tensor \"{}\"", path.string(), tensor_name);
}

}  // namespace annulus
