#include "core/base/stream.h"

#include <utility>

#include "core/base/error.h"
#if ANNULUS_HAS_CUDA
#include "core/base/cuda_check.h"
#endif

namespace annulus {

#if ANNULUS_HAS_CUDA

void StreamView::synchronize() const {
  if (device_.is_cpu()) return;
  const DeviceGuard guard(device_);
  ANNULUS_CUDA_CHECK(cudaStreamSynchronize(static_cast<cudaStream_t>(handle_)));
}

Stream::Stream(Device device) : view_(device, nullptr) {
  if (device.is_cpu()) return;
  const DeviceGuard guard(device);
  cudaStream_t stream = nullptr;
  ANNULUS_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  view_ = StreamView(device, stream);
}

Stream::~Stream() {
  if (view_.handle() != nullptr) (void)cudaStreamDestroy(static_cast<cudaStream_t>(view_.handle()));
}

Event::Event(Device device, Timing timing) : device_(device), timing_(timing) {
  if (device.is_cpu()) return;
  const DeviceGuard guard(device);
  cudaEvent_t event = nullptr;
  ANNULUS_CUDA_CHECK(
      cudaEventCreateWithFlags(&event, timing == Timing::on ? cudaEventDefault : cudaEventDisableTiming));
  handle_ = event;
}

Event::~Event() {
  if (handle_ != nullptr) (void)cudaEventDestroy(static_cast<cudaEvent_t>(handle_));
}

void Event::record(StreamView stream) {
  if (device_.is_cpu()) {
    time_ = std::chrono::steady_clock::now();
    return;
  }
  const DeviceGuard guard(device_);
  const auto handle = static_cast<cudaStream_t>(stream.handle());
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (timing_ == Timing::on) ANNULUS_CUDA_CHECK(cudaStreamIsCapturing(handle, &capture));
  ANNULUS_CUDA_CHECK(cudaEventRecordWithFlags(
      static_cast<cudaEvent_t>(handle_), handle,
      capture == cudaStreamCaptureStatusActive ? cudaEventRecordExternal : cudaEventRecordDefault));
}

void Event::wait(StreamView stream) const {
  if (device_.is_cpu() || stream.device().is_cpu()) return;
  const DeviceGuard guard(stream.device());
  ANNULUS_CUDA_CHECK(
      cudaStreamWaitEvent(static_cast<cudaStream_t>(stream.handle()), static_cast<cudaEvent_t>(handle_), 0));
}

bool Event::query() const {
  if (device_.is_cpu()) return true;
  const cudaError_t status = cudaEventQuery(static_cast<cudaEvent_t>(handle_));
  if (status == cudaErrorNotReady) return false;
  check_cuda(status, "cudaEventQuery");
  return true;
}

double Event::seconds_since(const Event& earlier) const {
  if (device_.is_cpu()) return std::chrono::duration<double>(time_ - earlier.time_).count();
  const DeviceGuard guard(device_);
  float milliseconds = 0;
  ANNULUS_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(earlier.handle_),
                                          static_cast<cudaEvent_t>(handle_)));
  return milliseconds / 1000.0;
}

#else

void StreamView::synchronize() const {}

Stream::Stream(Device device) : view_(device, nullptr) { const DeviceGuard guard(device); }

Stream::~Stream() = default;

Event::Event(Device device, Timing timing) : device_(device), timing_(timing) {
  const DeviceGuard guard(device);
}

Event::~Event() = default;

void Event::record(StreamView) { time_ = std::chrono::steady_clock::now(); }

void Event::wait(StreamView) const {}

bool Event::query() const { return true; }

double Event::seconds_since(const Event& earlier) const {
  return std::chrono::duration<double>(time_ - earlier.time_).count();
}

#endif

Stream::Stream(Stream&& other) noexcept : view_(std::exchange(other.view_, StreamView())) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(view_, other.view_);
  return *this;
}

Event::Event(Event&& other) noexcept
    : device_(other.device_),
      timing_(other.timing_),
      handle_(std::exchange(other.handle_, nullptr)),
      time_(other.time_) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(timing_, other.timing_);
  std::swap(handle_, other.handle_);
  std::swap(time_, other.time_);
  return *this;
}

}  // namespace annulus
