// Writes IDX files, plain or gzipped, proper or not.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace annulus::test {

using Bytes = std::vector<std::uint8_t>;

/// Writes `bytes` to `file`, through gzip if its name ends in .gz.
inline void write_bytes(const std::string& file, const Bytes& bytes) {
  if (file.ends_with(".gz")) {
    const gzFile gzip = gzopen(file.c_str(), "wb");
    const bool written =
        gzwrite(gzip, bytes.data(), static_cast<unsigned>(bytes.size())) == static_cast<int>(bytes.size());
    if (gzclose(gzip) != Z_OK || !written) throw std::runtime_error("cannot write " + file);
    return;
  }
  std::ofstream stream(file, std::ios::binary);
  stream.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!stream) throw std::runtime_error("cannot write " + file);
}

/// An IDX file of u8: the header for `extents`, then `payload` as it is, of whatever size.
inline Bytes idx_bytes(const std::vector<std::uint32_t>& extents, const Bytes& payload) {
  Bytes bytes = {0, 0, 8, static_cast<std::uint8_t>(extents.size())};
  for (const std::uint32_t extent : extents)
    for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<std::uint8_t>(extent >> shift));
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

/// Pixels that tell samples apart: pixel i of the file is a hash of i.
inline Bytes idx_pixels(std::size_t count) {
  Bytes pixels(count);
  for (std::size_t i = 0; i < count; ++i) pixels[i] = static_cast<std::uint8_t>((i * 2654435761u) >> 13);
  return pixels;
}

/// Sample i has label i mod 10.
inline Bytes idx_labels(std::size_t count) {
  Bytes labels(count);
  for (std::size_t i = 0; i < count; ++i) labels[i] = static_cast<std::uint8_t>(i % 10);
  return labels;
}

/// The four files of an MNIST-like dataset in `folder`; `suffix` is "" or ".gz".
inline void write_idx_dataset(const std::filesystem::path& folder, std::uint32_t train, std::uint32_t test,
                              std::uint32_t height, std::uint32_t width, const std::string& suffix = "") {
  std::filesystem::create_directories(folder);
  const auto write = [&](const std::string& split, std::uint32_t count) {
    const std::string prefix = (folder / split).string();
    write_bytes(prefix + "-images-idx3-ubyte" + suffix,
                idx_bytes({count, height, width}, idx_pixels(std::size_t{count} * height * width)));
    write_bytes(prefix + "-labels-idx1-ubyte" + suffix, idx_bytes({count}, idx_labels(count)));
  };
  write("train", train);
  write("t10k", test);
}

}  // namespace annulus::test
