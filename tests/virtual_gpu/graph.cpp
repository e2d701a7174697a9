// The functions of include/cuda_runtime.h that capture, instantiate and launch graphs.
#include "graph.h"

#include <algorithm>

#include "report.h"
#include "runtime.h"

namespace virtual_gpu {

void add_to(Frontier& frontier, const Frontier& more) {
  for (const std::size_t node : more)
    if (std::find(frontier.begin(), frontier.end(), node) == frontier.end()) frontier.push_back(node);
}

void capture_node(Stream& stream, MakeOperation make) {
  std::vector<GraphNode>& nodes = stream.capture->graph->nodes;
  nodes.push_back({std::move(make), stream.frontier});
  stream.frontier = {nodes.size() - 1};
}

void require_no_capture(const char* call) {
  for (const Stream& stream : machine().streams) {
    const Capture* const capture = stream.capture.get();
    if (capture == nullptr) continue;
    if (capture->mode == cudaStreamCaptureModeGlobal ||
        (capture->mode == cudaStreamCaptureModeThreadLocal && capture->thread == std::this_thread::get_id()))
      report(nullptr, "{} while a stream captures: the runtime refuses it, and the capture is lost", call);
  }
}

namespace {

// Nodes that nothing in the frontier comes after are on streams that were not joined.
void require_joined(const Capture& capture, const Frontier& frontier) {
  const std::vector<GraphNode>& nodes = capture.graph->nodes;
  std::vector<bool> joined(nodes.size());
  for (const std::size_t node : frontier) joined[node] = true;
  for (std::size_t i = nodes.size(); i-- > 0;) {
    if (!joined[i])
      report(nullptr,
             "cudaStreamEndCapture: work of another stream was not joined: record an event after node {} of "
             "{} and "
             "make the first stream wait for it",
             i, nodes.size());
    for (const std::size_t before : nodes[i].after) joined[before] = true;
  }
}

// One launch of a graph: its nodes run in any order that the edges allow.
class GraphRun {
 public:
  explicit GraphRun(const Graph& graph) : graph_(graph), done_(graph.nodes.size()) {
    for (const GraphNode& node : graph.nodes) operations_.push_back(node.make());
  }

  bool can_run_one() const { return !startable().empty(); }

  void run_one() {
    const std::vector<std::size_t> nodes = startable();
    const std::size_t node = nodes[machine().random()() % nodes.size()];
    operations_[node].run();
    done_[node] = true;
  }

 private:
  std::vector<std::size_t> startable() const {
    std::vector<std::size_t> result;
    for (std::size_t i = 0; i < done_.size(); ++i) {
      const std::vector<std::size_t>& after = graph_.nodes[i].after;
      if (!done_[i] &&
          std::all_of(after.begin(), after.end(), [&](std::size_t node) { return done_[node]; }) &&
          (!operations_[i].may_start || operations_[i].may_start()))
        result.push_back(i);
    }
    return result;
  }

  const Graph& graph_;
  std::vector<Operation> operations_;
  std::vector<bool> done_;
};

template <class T>
auto find_live(T& owners, const void* handle, const char* call, const char* what) {
  const auto found =
      std::find_if(owners.begin(), owners.end(), [&](const auto& owner) { return owner.get() == handle; });
  if (found == owners.end()) report(nullptr, "{}: the {} was destroyed or never created", call, what);
  return found;
}

}  // namespace
}  // namespace virtual_gpu

using namespace virtual_gpu;

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  const Lock lock(machine().mutex);
  if (handle == nullptr) report(nullptr, "cudaStreamBeginCapture: the default stream cannot capture");
  Stream& stream = machine().stream(handle, "cudaStreamBeginCapture");
  if (stream.capture != nullptr) report(nullptr, "cudaStreamBeginCapture: the stream captures already");
  stream.capture = std::make_shared<Capture>();
  stream.capture->origin = &stream;
  stream.capture->mode = mode;
  stream.capture->thread = std::this_thread::get_id();
  stream.capture->graph->device = stream.device;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  const Lock lock(machine().mutex);
  Stream& stream = machine().stream(handle, "cudaStreamEndCapture");
  const std::shared_ptr<Capture> capture = stream.capture;
  if (capture == nullptr || capture->origin != &stream)
    report(nullptr, "cudaStreamEndCapture: no capture was begun on this stream");
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
    report(nullptr, "cudaStreamEndCapture: another thread began the capture");
  require_joined(*capture, stream.frontier);
  capture->ended = true;
  for (Stream& each : machine().streams) {
    if (each.capture != capture) continue;
    each.capture = nullptr;
    each.frontier.clear();
  }
  machine().graphs.push_back(capture->graph);
  *graph = capture->graph.get();
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  const Lock lock(machine().mutex);
  const bool captures = machine().stream(handle, "cudaStreamIsCapturing").capture != nullptr;
  *status = captures ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  const Lock lock(machine().mutex);
  const auto found = find_live(machine().graphs, graph, "cudaGraphInstantiate", "graph");
  machine().graph_execs.push_back(std::make_shared<GraphExec>(GraphExec{*found}));
  *exec = machine().graph_execs.back().get();
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const Lock lock(machine().mutex);
  machine().graphs.erase(find_live(machine().graphs, graph, "cudaGraphDestroy", "graph"));
  return cudaSuccess;
}

// Launches that have been queued still run.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  const Lock lock(machine().mutex);
  machine().graph_execs.erase(
      find_live(machine().graph_execs, exec, "cudaGraphExecDestroy", "executable graph"));
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle) {
  const Lock lock(machine().mutex);
  Stream& stream = machine().stream(stream_handle, "cudaGraphLaunch");
  const std::shared_ptr<GraphExec> exec =
      *find_live(machine().graph_execs, handle, "cudaGraphLaunch", "executable graph");
  if (stream.device != exec->graph->device)
    report(nullptr, "cudaGraphLaunch: the graph was captured on cuda:{}, the stream is of cuda:{}",
           exec->graph->device, stream.device);
  if (stream.capture != nullptr)
    report(nullptr, "cudaGraphLaunch: a graph within a graph is not supported by the virtual GPU");
  if (const cudaError_t status = status_of(device_of(stream.device)); status != cudaSuccess) return status;
  ++device_of(stream.device).ledger.graph_launches;
  const std::size_t nodes = exec->graph->nodes.size();
  if (nodes == 0) return cudaSuccess;
  // As many pieces of work as there are nodes, so that other streams go on in between.
  const auto run = std::make_shared<GraphRun>(*exec->graph);
  const std::uint64_t turn = exec->launched++;
  for (std::size_t i = 0; i < nodes; ++i)
    machine().enqueue(stream, {[=] {
                                 run->run_one();
                                 if (i + 1 == nodes) ++exec->finished;
                               },
                               [=] { return exec->finished == turn && run->can_run_one(); }});
  return cudaSuccess;
}
