// Two pinned buffers between a file and a device, so that one is copied while the other is read or written.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "core/base/buffer.h"
#include "core/base/stream.h"
#include "core/base/tensor.h"

namespace annulus {

/// Moves the bytes of tensors through host memory in pieces. The memory of a CPU tensor is host memory: its
/// pieces are parts of it, and nothing is copied. Throws DeviceError if a copy fails.
class CheckpointStaging {
 public:
  static constexpr std::size_t kPieceBytes = 8u << 20;

  /// Makes the buffers, for a CUDA stream.
  explicit CheckpointStaging(StreamView stream);

  /// Hands every piece of the tensor's bytes, which begins at `offset`, to `sink`, in order.
  using Sink = std::function<void(std::uint64_t offset, std::span<const std::byte> piece)>;
  void drain(const Tensor& tensor, const Sink& sink);

  /// Lets `source` write every piece, in order, and returns when all have arrived in the tensor.
  using Source = std::function<void(std::uint64_t offset, std::span<std::byte> piece)>;
  void fill(const Tensor& tensor, const Source& source);

 private:
  StreamView stream_;
  std::array<Buffer, 2> buffers_;
};

}  // namespace annulus
