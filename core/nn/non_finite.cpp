#include "core/nn/non_finite.h"

#include <algorithm>
#include <vector>

#include "kernels/elementwise.h"
#include "kernels/reduce.h"

namespace annulus {
namespace {

constexpr std::size_t kInput = 0;
constexpr std::size_t weights_of(const LayerNode& layer) { return 1 + 2 * layer.index; }
constexpr std::size_t output_of(const LayerNode& layer) { return 2 + 2 * layer.index; }

}  // namespace

NonFiniteSearch::NonFiniteSearch(Model& model, StreamView stream)
    : model_(model), stream_(stream), first_(output_of(model.layers().back()) + 1) {}

void NonFiniteSearch::input_done(const Tensor& x) { look(x, kInput); }

void NonFiniteSearch::forward_done(const LayerNode& layer, const Tensor& y) {
  for (const ArenaSlice& slice : layer.slices())
    if (slice.role == ArenaSlice::Role::parameter)
      look(model_.arena().weights(model_.arena().find(slice.name)), weights_of(layer));
  look(y, output_of(layer));
}

void NonFiniteSearch::look(const Tensor& values, std::size_t finding) {
  if (finding >= first_) return;
  const Device device = stream_.device();
  const Buffer workspace(device, kernels::reduce_workspace_bytes(device, values.elements()));
  const Buffer result(device, sizeof(std::int64_t));
  kernels::first_non_finite(stream_, values, workspace.data(),
                            Tensor(result.data(), {1}, DType::i64, device));
  std::int64_t index = -1;
  copy_bytes(stream_, &index, result.data(), sizeof(index));
  stream_.synchronize();
  if (index >= 0) first_ = finding;
}

std::string NonFiniteSearch::join(GradientSynchronizer& synchronizer) {
  // One element of the gradient arena stands for each finding; a sum over the ranks joins them. A model has
  // more elements than findings, unless it is all layers without parameters: the last stands for the rest.
  const ParameterArena& arena = model_.arena();
  const std::size_t elements = arena.elements();
  zero_bytes(stream_, arena.gradients().data(), elements * sizeof(float));
  const std::size_t mine = std::min(first_, elements - 1);
  kernels::fill(stream_, 1.0f, arena.gradients(ElementRange{mine, mine + 1}));
  for (const ElementRange range : model_.gradient_ranges()) synchronizer.add(range, stream_);
  synchronizer.finalize(stream_);

  std::vector<float> found(elements);
  copy_bytes(stream_, found.data(), arena.gradients().data(), elements * sizeof(float));
  stream_.synchronize();
  const auto first = std::find_if(found.begin(), found.end(), [](float ranks) { return ranks > 0; });
  return text_of(static_cast<std::size_t>(first - found.begin()));
}

std::string NonFiniteSearch::text_of(std::size_t finding) const {
  if (finding == kInput) return "the input of the first layer";
  std::string text = "none before the loss: every weight and every output of a layer is finite";
  visit_backward(model_.layers(), [&](const LayerNode& layer) {
    if (finding == weights_of(layer)) text = "the weights of layer " + layer.describe();
    if (finding == output_of(layer)) text = "the output of layer " + layer.describe();
  });
  return text;
}

}  // namespace annulus
