#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "io/checkpoint.h"
#include "io/checkpoint_staging.h"
#include "io/checkpoint_structure.h"
#include "io/crc32c.h"

namespace annulus {
namespace {

// Small enough to stay in the cache between read() and the checksum.
constexpr std::size_t kVerifyBytes = 512u << 10;

}  // namespace

CheckpointReader::CheckpointReader(const std::filesystem::path& path)
    : path_(path), file_(File::open(path)), file_bytes_(file_.size()), format_version_(kCheckpointVersion) {
  Manifest manifest = read_structure(path_, file_);
  engine_version_ = std::move(manifest.engine_version);
  tensors_ = std::move(manifest.tensors);
  attributes_ = std::move(manifest.attributes);
  for (std::size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

const TensorRecord* CheckpointReader::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

template <class T>
const T& CheckpointReader::attribute(const std::string& name, const char* type) const {
  const auto found = attributes_.find(name);
  require<CheckpointError>(found != attributes_.end(), "{}: has no training attribute \"{}\"", path_.string(),
                           name);
  const T* value = std::get_if<T>(&found->second);
  require<CheckpointError>(value != nullptr, "{}: training attribute \"{}\" is not {}", path_.string(), name,
                           type);
  return *value;
}

std::int64_t CheckpointReader::integer(const std::string& name) const {
  return attribute<std::int64_t>(name, "a whole number");
}

double CheckpointReader::number(const std::string& name) const {
  return attribute<double>(name, "a floating-point number");
}

const std::string& CheckpointReader::text(const std::string& name) const {
  return attribute<std::string>(name, "a text");
}

void CheckpointReader::check_crc(const TensorRecord& record, std::uint32_t found) const {
  require<CheckpointError>(found == record.crc32c,
                           "{}: the checksum of its elements is {:08x}; expected {:08x}; the file is damaged",
                           describe(path_, record.name), found, record.crc32c);
}

void CheckpointReader::verify_elements(const TensorRecord& record, std::span<std::byte> staging) const {
  std::uint32_t found = 0;
  for (std::uint64_t at = 0; at < record.bytes(); at += staging.size()) {
    const std::span<std::byte> piece =
        staging.first(std::min<std::uint64_t>(staging.size(), record.bytes() - at));
    file_.read(record.offset + at, piece);
    found = crc32c(piece, found);
  }
  check_crc(record, found);
}

void CheckpointReader::verify() const {
  std::vector<std::byte> staging(kVerifyBytes);
  for (const TensorRecord& record : tensors_) verify_elements(record, staging);
  verify_attributes(path_, file_, {engine_version_, tensors_, attributes_});
}

const TensorRecord& CheckpointReader::checked(const TensorToLoad& tensor, StreamView stream) const {
  const Tensor& destination = tensor.destination;
  const std::string where = describe(path_, tensor.name);
  const TensorRecord* record = find(tensor.name);
  require<CheckpointError>(record != nullptr, "{}: is not in the file; is it a checkpoint of another model?",
                           where);
  require<CheckpointError>(
      std::ranges::equal(record->shape, destination.shape()),
      "{}: has shape [{}] in the file; expected {}; is it a checkpoint of another model?", where,
      fmt::join(record->shape, ", "), destination.shape().to_string());
  require<CheckpointError>(record->dtype == destination.dtype(), "{}: holds {} in the file; expected {}",
                           where, name_of(record->dtype), name_of(destination.dtype()));
  require<DeviceError>(destination.device().is_cpu() || destination.device() == stream.device(),
                       "{}: is to be read onto {}; expected the CPU or the stream's device, {}", where,
                       destination.device().to_string(), stream.device().to_string());
  return *record;
}

void CheckpointReader::load(std::span<const TensorToLoad> tensors, StreamView stream) const {
  std::vector<const TensorRecord*> records;
  for (const TensorToLoad& tensor : tensors) records.push_back(&checked(tensor, stream));
  std::vector<std::byte> piece(kVerifyBytes);
  for (const TensorRecord* record : records) verify_elements(*record, piece);

  CheckpointStaging staging(stream);
  try {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const TensorRecord& record = *records[i];
      std::uint32_t found = 0;
      staging.fill(tensors[i].destination, [&](std::uint64_t at, std::span<std::byte> bytes) {
        file_.read(record.offset + at, bytes);
        found = crc32c(bytes, found);
      });
      check_crc(record, found);
    }
  } catch (const Error& error) {
    fail<CheckpointError>("{} (after it had verified; what was being loaded is incomplete: load it again)",
                          error.what());
  }
}

void CheckpointReader::read_bytes(const TensorRecord& record, std::uint64_t first,
                                  std::span<std::byte> out) const {
  require<CheckpointError>(first <= record.bytes() && out.size() <= record.bytes() - first,
                           "{}: bytes {} to {} were asked for, of {}", describe(path_, record.name), first,
                           first + out.size(), record.bytes());
  file_.read(record.offset + first, out);
}

}  // namespace annulus
