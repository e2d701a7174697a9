// Streams and events: work on one stream runs in order, and an event is the only edge between two.
// CPU streams run every piece of work before the call that submits it returns.
#pragma once

#include <chrono>

#include "core/base/device.h"

namespace annulus {

/// A stream that somebody else owns; cheap to copy.
class StreamView {
 public:
  /// The CPU's stream.
  StreamView() = default;
  StreamView(Device device, void* handle) : device_(device), handle_(handle) {}

  Device device() const { return device_; }

  /// The cudaStream_t; null for the CPU.
  void* handle() const { return handle_; }

  /// Blocks the caller until all work submitted so far is done. Throws DeviceError if it failed.
  void synchronize() const;

 private:
  Device device_;
  void* handle_ = nullptr;
};

/// Owns a stream. Move-only: two owners would destroy it twice.
class Stream {
 public:
  explicit Stream(Device device);
  ~Stream();
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;

  StreamView view() const { return view_; }
  operator StreamView() const { return view_; }
  Device device() const { return view_.device(); }
  void synchronize() const { view_.synchronize(); }

 private:
  StreamView view_;
};

/// Owns an event: a point in a stream's work that other streams and the host can wait for.
class Event {
 public:
  /// A timed event costs a little more to record, and knows when it happened.
  enum class Timing { off, on };

  explicit Event(Device device, Timing timing = Timing::off);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  /// Marks the point after all work submitted to `stream` so far. In a stream that is being captured
  /// (graph.h), every launch of the graph marks a timed event again; an untimed one is an edge within the
  /// graph.
  void record(StreamView stream);

  /// Work submitted to `stream` from now on starts after the marked point. The host does not block.
  void wait(StreamView stream) const;

  /// True once the marked point has been reached. Throws DeviceError if work before it failed.
  bool query() const;

  /// Seconds from `earlier` to this event: both timed, recorded and reached.
  double seconds_since(const Event& earlier) const;

 private:
  Device device_;
  Timing timing_;
  void* handle_ = nullptr;
  std::chrono::steady_clock::time_point time_;  // of the last record; used by the CPU only
};

}  // namespace annulus
