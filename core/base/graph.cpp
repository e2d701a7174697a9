#include "core/base/graph.h"

#include <exception>
#include <utility>

#include "core/base/error.h"
#if ANNULUS_HAS_CUDA
#include "core/base/cuda_check.h"
#endif

namespace annulus {

#if ANNULUS_HAS_CUDA

Graph Graph::capture(StreamView stream, const std::function<void()>& submit) {
  require<DeviceError>(stream.device().is_cuda(), "only work of CUDA devices can be captured, not of {}",
                       stream.device().to_string());
  const DeviceGuard guard(stream.device());
  const auto handle = static_cast<cudaStream_t>(stream.handle());
  ANNULUS_CUDA_CHECK(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal));
  std::exception_ptr failure;
  try {
    submit();
  } catch (...) {
    failure = std::current_exception();
  }
  cudaGraph_t captured = nullptr;
  const cudaError_t status = cudaStreamEndCapture(handle, &captured);  // also after a failure
  if (failure) {
    if (captured != nullptr) (void)cudaGraphDestroy(captured);
    std::rethrow_exception(failure);
  }
  check_cuda(status, "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t instantiated = cudaGraphInstantiate(&executable, captured, 0);
  (void)cudaGraphDestroy(captured);
  check_cuda(instantiated, "cudaGraphInstantiate");
  Graph graph;
  graph.device_ = stream.device();
  graph.handle_ = executable;
  return graph;
}

Graph::~Graph() {
  if (handle_ != nullptr) (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(handle_));
}

void Graph::launch(StreamView stream) const {
  const DeviceGuard guard(device_);
  ANNULUS_CUDA_CHECK(
      cudaGraphLaunch(static_cast<cudaGraphExec_t>(handle_), static_cast<cudaStream_t>(stream.handle())));
}

#else

Graph Graph::capture(StreamView stream, const std::function<void()>&) {
  fail<DeviceError>("only work of CUDA devices can be captured, not of {}", stream.device().to_string());
}

Graph::~Graph() = default;

void Graph::launch(StreamView) const {}

#endif

Graph::Graph(Graph&& other) noexcept
    : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  return *this;
}

}  // namespace annulus
