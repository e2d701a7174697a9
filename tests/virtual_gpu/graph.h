// CUDA graphs: work that a stream captures instead of running it, and that can be launched again and again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "include/cuda_runtime.h"

namespace virtual_gpu {

struct Operation;
using MakeOperation = std::function<Operation()>;

/// Work that runs after some of the nodes before it. `make` is called once for every launch of the graph.
struct GraphNode {
  MakeOperation make;
  std::vector<std::size_t> after;
};

struct Graph {
  int device = 0;
  std::vector<GraphNode> nodes;
};

struct GraphExec {
  std::shared_ptr<const Graph> graph;
  std::uint64_t launched = 0, finished = 0;  // launches of one exec do not overlap
};

/// What streams capture between cudaStreamBeginCapture and cudaStreamEndCapture.
struct Capture {
  Stream* origin = nullptr;
  cudaStreamCaptureMode mode{};
  std::thread::id thread;  // that began it
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  bool ended = false;
};

/// The nodes that whatever a stream does next comes after.
using Frontier = std::vector<std::size_t>;

void add_to(Frontier& frontier, const Frontier& more);

/// Adds a node after the stream's frontier and makes it the frontier.
void capture_node(Stream& stream, MakeOperation make);

/// Reports a call that may not be made while any stream captures, as far as its mode says.
void require_no_capture(const char* call);

}  // namespace virtual_gpu
