// Graph: work that was captured from a CUDA stream once, to be submitted again and again with one call.
#pragma once

#include <functional>

#include "core/base/stream.h"

namespace annulus {

/// Owns a captured graph of one device. Move-only.
class Graph {
 public:
  /// Empty: nothing is captured.
  Graph() = default;

  /// Captures what `submit` submits to `stream`, and to streams that fork from it and join it again by
  /// events; nothing of it runs. `submit` may not wait for the device, and may neither allocate nor free its
  /// memory. What it passes by value (addresses, extents) is part of the graph; what its work reads from
  /// memory is read at each launch. Rethrows what `submit` throws. Throws DeviceError if something cannot be
  /// captured, or on the CPU.
  static Graph capture(StreamView stream, const std::function<void()>& submit);

  ~Graph();
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;

  explicit operator bool() const { return handle_ != nullptr; }

  /// Submits all of the captured work to a stream of the device that it was captured on.
  void launch(StreamView stream) const;

 private:
  Device device_;
  void* handle_ = nullptr;  // the cudaGraphExec_t
};

}  // namespace annulus
