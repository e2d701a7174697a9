// Exports a checkpoint's model to .safetensors and .npz.
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/error.h"
#include "io/checkpoint.h"
#include "tools/checkpoint_commands.h"
#include "tools/checkpoint_output.h"

namespace annulus {
namespace {

/// A file that is written from front to back.
class Output {
 public:
  explicit Output(const std::filesystem::path& path) : file_(File::create(path)) {}
  std::uint64_t size() const { return size_; }
  void append(std::span<const std::byte> bytes) {
    file_.write(size_, bytes);
    size_ += bytes.size();
  }
  void append(const std::string& bytes) { append(std::as_bytes(std::span(bytes))); }
  void close() { file_.close(); }

 private:
  File file_;
  std::uint64_t size_ = 0;
};

std::string little_endian(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xFF);
  return text;
}

// On the CPU, checksum compared.
Buffer load(const CheckpointReader& reader, const TensorRecord& record) {
  Buffer memory(Device{}, record.bytes());
  const Shape shape(record.shape.data(), record.shape.size());
  const TensorToLoad tensor{record.name, Tensor(memory.data(), shape, record.dtype, Device{})};
  reader.load(std::span(&tensor, 1));
  return memory;
}

std::span<const std::byte> bytes_of(const Buffer& memory, const TensorRecord& record) {
  return {static_cast<const std::byte*>(memory.data()), record.bytes()};
}

const char* safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::f64:
      return "F64";
    case DType::f16:
      return "F16";
    case DType::bf16:
      return "BF16";
    case DType::i32:
      return "I32";
    case DType::i64:
      return "I64";
    case DType::u8:
      return "U8";
  }
  fail<CheckpointError>("unknown dtype {}", static_cast<int>(dtype));
}

// The length of the header in 8 bytes, the header in JSON, and the elements without gaps; the widest dtypes
// come first, which aligns all of them.
void write_safetensors(const CheckpointReader& reader, std::vector<const TensorRecord*> records,
                       Output& output) {
  std::ranges::stable_sort(records, std::ranges::greater(),
                           [](const auto* record) { return size_of(record->dtype); });
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  std::uint64_t end = 0;
  for (const TensorRecord* record : records) {
    require<CheckpointError>(!header.contains(record->name),
                             "{}: safetensors keeps the name \"{}\" for itself; export to .npz",
                             reader.path().string(), record->name);
    const std::uint64_t begin = end;
    end += record->bytes();
    header[record->name] = {
        {"dtype", safetensors_name(record->dtype)}, {"shape", record->shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  output.append(little_endian(text.size(), 8) + text);
  for (const TensorRecord* record : records) output.append(bytes_of(load(reader, *record), *record));
}

const char* numpy_name(const TensorRecord& record) {
  switch (record.dtype) {
    case DType::f32:
      return "<f4";
    case DType::f64:
      return "<f8";
    case DType::f16:
      return "<f2";
    case DType::i32:
      return "<i4";
    case DType::i64:
      return "<i8";
    case DType::u8:
      return "|u1";
    case DType::bf16:
      break;
  }
  fail<CheckpointError>("tensor \"{}\": NumPy has no {}; export to .safetensors", record.name,
                        name_of(record.dtype));
}

// The header of an .npy file of version 1: its end is at a multiple of 64 bytes.
std::string npy_header(const TensorRecord& record) {
  std::string shape;
  for (const std::size_t extent : record.shape) shape += fmt::format("{}, ", extent);
  std::string text =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", numpy_name(record), shape);
  text.append((64 - (10 + text.size() + 1) % 64) % 64, ' ');
  text += '\n';
  return std::string("\x93NUMPY\x01\x00", 8) + little_endian(text.size(), 2) + text;
}

// A zip archive of stored .npy files, each at most 4 GiB, as is the whole. Entries are dated 1 January 1980,
// so that equal models make equal files.
void write_npz(const CheckpointReader& reader, const std::vector<const TensorRecord*>& records,
               Output& output) {
  std::uint64_t largest = 65536;  // of the file
  for (const TensorRecord* record : records) largest += record->bytes() + 2 * record->name.size() + 512;
  require<CheckpointError>(largest <= std::numeric_limits<std::uint32_t>::max() && records.size() < 65535,
                           "{}: {} tensors of up to {} bytes in all are too much for .npz; export to "
                           ".safetensors",
                           reader.path().string(), records.size(), largest);
  std::string directory;
  for (const TensorRecord* record : records) {
    const std::string name = record->name + ".npy", header = npy_header(*record);
    const Buffer memory = load(reader, *record);
    const std::span<const std::byte> elements = bytes_of(memory, *record);
    uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(header.data()), header.size());
    // A null pointer would mean "start afresh".
    if (!elements.empty())
      crc = crc32_z(crc, reinterpret_cast<const Bytef*>(elements.data()), elements.size());
    const std::uint64_t size = header.size() + elements.size();
    // Version 2.0, UTF-8 names, stored, time 0, 1 January 1980, checksum, both sizes, name, nothing extra.
    const std::string common = little_endian(20, 2) + little_endian(0x0800, 2) + little_endian(0, 4) +
                               little_endian(0x0021, 2) + little_endian(crc, 4) + little_endian(size, 4) +
                               little_endian(size, 4) + little_endian(name.size(), 2) + little_endian(0, 2);
    // Made by version 2.0, ..., no comment, disk 0, no attributes, where the entry begins.
    directory += "PK\x01\x02" + little_endian(20, 2) + common + std::string(10, '\0') +
                 little_endian(output.size(), 4) + name;
    output.append("PK\x03\x04" + common + name + header);
    output.append(elements);
  }
  const std::uint64_t begin = output.size();
  output.append(directory + "PK\x05\x06" + little_endian(0, 4) + little_endian(records.size(), 2) +
                little_endian(records.size(), 2) + little_endian(directory.size(), 4) +
                little_endian(begin, 4) + little_endian(0, 2));
}

}  // namespace

void export_model(const std::filesystem::path& in, const std::filesystem::path& out) {
  const bool npz = out.extension() == ".npz";
  require<ConfigError>(npz || out.extension() == ".safetensors",
                       "{}: expected a name that ends in .safetensors or .npz", out.string());
  const CheckpointReader reader(in);
  std::vector<const TensorRecord*> records;
  for (const TensorRecord& record : reader.tensors())
    if (record.role != TensorRole::optimizer_state) records.push_back(&record);
  write_new_file(out, [&](const std::filesystem::path& temporary) {
    Output output(temporary);
    npz ? write_npz(reader, records, output) : write_safetensors(reader, records, output);
    output.close();
  });
}

}  // namespace annulus
