// The functions of include/cuda_runtime.h for streams and events.
#include <algorithm>
#include <chrono>

#include "report.h"
#include "runtime.h"

using namespace virtual_gpu;

namespace {

void require_not_capturing(const Stream& stream, const char* call) {
  if (stream.capture != nullptr)
    report(nullptr, "{}: the stream captures; nothing of what it was given has started", call);
}

void require_not_captured(const EventState& event, const char* call) {
  if (event.capture != nullptr)
    report(nullptr, "{}: the event was last recorded by a stream that captured, and will never happen", call);
}

// A stream that waits for an event of a capture becomes part of it.
void join_capture(Stream& stream, const EventState& event) {
  if (event.capture->ended)
    report(nullptr, "cudaStreamWaitEvent: the event was recorded in a capture that has ended");
  if (stream.capture != nullptr && stream.capture != event.capture)
    report(nullptr, "cudaStreamWaitEvent: the stream and the event are of two captures");
  if (stream.device != event.capture->graph->device)
    report(nullptr,
           "cudaStreamWaitEvent: a stream of cuda:{} cannot join a capture on cuda:{} of the virtual GPU",
           stream.device, event.capture->graph->device);
  stream.capture = event.capture;
  add_to(stream.frontier, event.frontier);
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const Lock lock(machine().mutex);
  if (const cudaError_t status = status_of(current()); status != cudaSuccess) return status;
  machine().streams.emplace_back();
  *stream = &machine().streams.back();
  (*stream)->device = current_device();
  return cudaSuccess;
}

// Returns at once; what is queued still runs.
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  const Lock lock(machine().mutex);
  Stream& stream = machine().stream(handle, "cudaStreamDestroy");
  require_not_capturing(stream, "cudaStreamDestroy");
  const cudaError_t status = status_of(device_of(stream.device));
  stream.destroyed = true;
  if (stream.queue.empty())
    machine().streams.remove_if([&](const Stream& other) { return &other == &stream; });
  return status;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  const Lock lock(machine().mutex);
  Stream& stream = machine().stream(handle, "cudaStreamSynchronize");
  require_not_capturing(stream, "cudaStreamSynchronize");
  wait_for(stream, "cudaStreamSynchronize");
  return status_of(device_of(stream.device));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  const Lock lock(machine().mutex);
  Stream& stream = machine().stream(handle, "cudaStreamWaitEvent");
  if (const cudaError_t status = status_of(device_of(stream.device)); status != cudaSuccess) return status;
  const EventState& recorded = *event->state;
  if (recorded.capture != nullptr) {
    join_capture(stream, recorded);
    return cudaSuccess;
  }
  if (stream.capture != nullptr)
    report(nullptr,
           "cudaStreamWaitEvent: the stream captures, but the event was recorded outside of its capture");
  const std::uint64_t point = recorded.requested;
  machine().enqueue(stream, {[] {}, [state = event->state, point] { return state->completed >= point; }});
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const Lock lock(machine().mutex);
  if (const cudaError_t status = status_of(current()); status != cudaSuccess) return status;
  *event = new Event{std::make_shared<EventState>(), flags != cudaEventDisableTiming};
  (*event)->state->device = current_device();
  ++machine().live_events;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock(machine().mutex);
  event->state->destroyed = true;
  delete event;
  --machine().live_events;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned flags) {
  const Lock lock(machine().mutex);
  Stream& stream = machine().stream(handle, "cudaEventRecord");
  const std::shared_ptr<EventState> state = event->state;
  if (stream.device != state->device)
    report(nullptr, "cudaEventRecord: the event is of cuda:{}, the stream of cuda:{}", state->device,
           stream.device);
  if (const cudaError_t status = status_of(device_of(stream.device)); status != cudaSuccess) return status;
  if (flags == cudaEventRecordExternal && stream.capture == nullptr)
    report(nullptr, "cudaEventRecordWithFlags: cudaEventRecordExternal is for streams that capture");
  if (flags != cudaEventRecordExternal && stream.capture != nullptr) {
    state->capture = stream.capture;
    state->frontier = stream.frontier;
    return cudaSuccess;
  }
  state->capture = nullptr;
  machine().enqueue_each(stream, [state]() -> Operation {
    if (state->destroyed) report(nullptr, "cudaGraphLaunch: an event that the graph records was destroyed");
    return {[state, point = ++state->requested] {
              state->completed = std::max(state->completed, point);
              state->completed_seconds = seconds_now();
            },
            {}};
  });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(machine().mutex);
  require_no_capture("cudaEventQuery");
  require_not_captured(*event->state, "cudaEventQuery");
  const EventState& state = *event->state;
  if (const cudaError_t status = status_of(device_of(state.device)); status != cudaSuccess) return status;
  if (state.completed >= state.requested) return cudaSuccess;
  machine().run_a_little();
  if (const cudaError_t status = status_of(device_of(state.device)); status != cudaSuccess) return status;
  return state.completed >= state.requested ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(machine().mutex);
  require_not_captured(*event->state, "cudaEventSynchronize");
  const EventState& state = *event->state;
  const VirtualDevice& device = device_of(state.device);
  machine().run_until([&, point = state.requested] { return device.failed || state.completed >= point; },
                      "cudaEventSynchronize");
  return status_of(device);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const Lock lock(machine().mutex);
  for (const cudaEvent_t event : {start, end}) {
    if (const cudaError_t status = status_of(device_of(event->state->device)); status != cudaSuccess)
      return status;
    if (!event->timed || event->state->requested == 0)
      report(nullptr, "cudaEventElapsedTime: both events must be timed and recorded");
    if (event->state->completed < event->state->requested) return cudaErrorNotReady;
  }
  *milliseconds =
      static_cast<float>(1000 * (end->state->completed_seconds - start->state->completed_seconds));
  return cudaSuccess;
}
