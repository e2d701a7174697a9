// StepGraph: submits the work of a training step launch by launch or, once the same work has come twice in a
// row, as one CUDA graph, which takes the host out of the way of the device.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/graph.h"

namespace annulus {

class StepGraph {
 public:
  /// What the launches of a step depend on. Steps with one key make the same launches: everything else that
  /// changes from step to step is read from memory by their kernels.
  using Key = std::vector<std::uint64_t>;

  enum class Way {
    submitted,  ///< by calling `submit`
    captured,   ///< by calling `submit` for a graph, and launching that
    launched    ///< as the graph that was captured before
  };

  /// Makes `stream` do what `submit` submits, and says how. The first step of a kind runs as it is submitted,
  /// and may plan memory; the second in a row is captured, and later ones launch the graph. One graph is
  /// kept. On the CPU, every step is submitted.
  Way run(StreamView stream, const Key& key, const std::function<void()>& submit);

 private:
  Key previous_;  // of the last step
  Key captured_;  // of graph_
  Graph graph_;
};

}  // namespace annulus
