#include "io/cifar10.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "io/in_memory_dataset.h"

namespace annulus {
namespace {

constexpr std::size_t kSide = 32;
constexpr std::size_t kChannels = 3;
constexpr std::size_t kPlane = kSide * kSide;
constexpr std::size_t kRecord = 1 + kChannels * kPlane;
constexpr std::size_t kClasses = 10;

std::vector<std::uint8_t> read_records(const std::string& file) {
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(file, error);
  require<DataError>(!error,
                     "{}: {}; CIFAR-10's binary version has data_batch_1.bin to data_batch_5.bin and "
                     "test_batch.bin; check the folder",
                     file, error.message());
  require<DataError>(
      bytes > 0 && bytes % kRecord == 0,
      "{}: expected records of {} bytes, found {} bytes, which is {} records and {} bytes; the file is "
      "truncated or not CIFAR-10's binary version, get it again",
      file, kRecord, bytes, bytes / kRecord, bytes % kRecord);
  std::vector<std::uint8_t> records(bytes);
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  stream.read(reinterpret_cast<char*>(records.data()), static_cast<std::streamsize>(bytes));
  require<DataError>(static_cast<bool>(stream), "{}: cannot read it: {}; check its permissions", file,
                     std::strerror(errno));
  return records;
}

}  // namespace

std::unique_ptr<Dataset> open_cifar10(const std::string& name, const std::string& folder, Split split) {
  std::vector<std::string> files = {"test_batch.bin"};
  if (split == Split::train)
    files = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
             "data_batch_5.bin"};
  std::vector<std::uint8_t> images;
  std::vector<std::int32_t> labels;
  for (const std::string& file_name : files) {
    const std::string file = (std::filesystem::path(folder) / file_name).string();
    const std::vector<std::uint8_t> records = read_records(file);
    std::vector<std::int64_t> file_labels;
    for (std::size_t begin = 0; begin < records.size(); begin += kRecord) {
      file_labels.push_back(records[begin]);
      const std::uint8_t* const planes = records.data() + begin + 1;
      for (std::size_t pixel = 0; pixel < kPlane; ++pixel)
        for (std::size_t c = 0; c < kChannels; ++c) images.push_back(planes[c * kPlane + pixel]);
    }
    const std::vector<std::int32_t> checked = check_labels(
        file_labels, kClasses, file, "the file is damaged or not CIFAR-10's binary version, get it again");
    labels.insert(labels.end(), checked.begin(), checked.end());
  }
  DatasetInfo info{.name = fmt::format("{}, {} split", name, name_of(split)),
                   .size = labels.size(),
                   .height = kSide,
                   .width = kSide,
                   .channels = kChannels,
                   .classes = kClasses,
                   .mean = {0.4914f, 0.4822f, 0.4465f},
                   .stddev = {0.2470f, 0.2435f, 0.2616f}};
  return std::make_unique<InMemoryDataset>(std::move(info), std::move(images), std::move(labels));
}

}  // namespace annulus
