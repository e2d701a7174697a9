#include "io/checkpoint_staging.h"

#include <algorithm>

namespace annulus {
namespace {

// Pieces of host memory: small enough that the checksum finds in the cache what read() has just put there,
// or leaves there what write() takes next.
constexpr std::size_t kHostPieceBytes = 1u << 20;

std::span<std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data()), tensor.bytes()};
}

std::span<std::byte> piece_of(std::span<std::byte> bytes, std::size_t offset, std::size_t most) {
  return bytes.subspan(offset, std::min(most, bytes.size() - offset));
}

}  // namespace

CheckpointStaging::CheckpointStaging(StreamView stream) : stream_(stream) {
  if (stream.device().is_cpu()) return;
  for (Buffer& buffer : buffers_) buffer = Buffer::pinned(stream.device(), kPieceBytes);
}

void CheckpointStaging::drain(const Tensor& tensor, const Sink& sink) {
  const std::span<std::byte> bytes = bytes_of(tensor);
  if (tensor.device().is_cpu()) {
    for (std::size_t at = 0; at < bytes.size(); at += kHostPieceBytes)
      sink(at, piece_of(bytes, at, kHostPieceBytes));
    return;
  }
  const auto start_copy = [&](std::size_t at) {
    if (at >= bytes.size()) return;
    const std::span<std::byte> piece = piece_of(bytes, at, kPieceBytes);
    copy_bytes(stream_, buffers_[at / kPieceBytes % 2].data(), piece.data(), piece.size());
  };
  start_copy(0);
  for (std::size_t at = 0; at < bytes.size(); at += kPieceBytes) {
    stream_.synchronize();
    start_copy(at + kPieceBytes);  // while the sink works on this piece
    const void* staged = buffers_[at / kPieceBytes % 2].data();
    sink(at, {static_cast<const std::byte*>(staged), piece_of(bytes, at, kPieceBytes).size()});
  }
}

void CheckpointStaging::fill(const Tensor& tensor, const Source& source) {
  const std::span<std::byte> bytes = bytes_of(tensor);
  if (tensor.device().is_cpu()) {
    for (std::size_t at = 0; at < bytes.size(); at += kHostPieceBytes)
      source(at, piece_of(bytes, at, kHostPieceBytes));
    return;
  }
  for (std::size_t at = 0; at < bytes.size(); at += kPieceBytes) {
    const std::span<std::byte> piece = piece_of(bytes, at, kPieceBytes);
    std::byte* staged = static_cast<std::byte*>(buffers_[at / kPieceBytes % 2].data());
    source(at, {staged, piece.size()});  // while the copy of the piece before it runs
    stream_.synchronize();
    copy_bytes(stream_, piece.data(), staged, piece.size());
  }
  stream_.synchronize();
}

}  // namespace annulus
