#include "core/nn/step_graph.h"

namespace annulus {

StepGraph::Way StepGraph::run(StreamView stream, const Key& key, const std::function<void()>& submit) {
  const bool is_new = key != previous_;
  previous_ = key;
  if (graph_ && key == captured_) {
    graph_.launch(stream);
    return Way::launched;
  }
  if (stream.device().is_cpu() || is_new) {
    submit();
    return Way::submitted;
  }
  graph_ = Graph();  // freed first, and none is kept if the capture fails
  graph_ = Graph::capture(stream, submit);
  captured_ = key;
  graph_.launch(stream);
  return Way::captured;
}

}  // namespace annulus
