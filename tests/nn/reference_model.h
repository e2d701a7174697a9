// A model's training loss in double, by the plainest loops: what the layers are tested against.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/philox.h"
#include "core/nn/layer_node.h"
#include "core/nn/model.h"
#include "kernels/dropout.h"

namespace annulus::test {

class ReferenceModel {
 public:
  using Values = std::vector<double>;

  /// Starts with the model's weights.
  ReferenceModel(const Model& model, std::size_t batch, const kernels::DropoutKey& dropout,
                 bool training = true)
      : model_(model), batch_(batch), dropout_(dropout), training_(training) {
    const Tensor weights = model.arena().weights();
    weights_.assign(weights.as<float>(), weights.as<float>() + weights.elements());
  }

  /// Elements as in the arena.
  std::span<double> weights(const ArenaSlice& slice) { return range(slice); }

  Values logits(const Values& input) {
    Values x = input;
    for (const LayerNode& layer : model_.layers()) x = forward(layer, x);
    return x;
  }

  /// Sum over samples of the cross entropy with label smoothing.
  double loss(const Values& input, std::span<const std::int32_t> labels, double smoothing) {
    const Values y = logits(input);
    const std::size_t classes = model_.classes();
    double sum = 0;
    for (std::size_t b = 0; b < batch_; ++b) {
      double total = 0;
      for (std::size_t c = 0; c < classes; ++c) total += std::exp(y[b * classes + c]);
      for (std::size_t c = 0; c < classes; ++c) {
        const double hot = static_cast<std::size_t>(labels[b]) == c ? 1 : 0;
        const double target = (1 - smoothing) * hot + smoothing / static_cast<double>(classes);
        sum -= target * (y[b * classes + c] - std::log(total));
      }
    }
    return sum;
  }

 private:
  Values forward(const LayerNode& layer, const Values& x) {
    return std::visit([&](const auto& spec) { return apply(layer, spec, x); }, layer.spec.options);
  }

  Values apply(const LayerNode& layer, const Conv2dSpec& spec, const Values& x) {
    const auto weight = named(layer, ".weight");
    const std::size_t height = layer.input[0], width = layer.input[1], channels = layer.input[2];
    const std::size_t out_height = layer.output[0], out_width = layer.output[1];
    Values y;
    for (std::size_t b = 0; b < batch_; ++b)
      for (std::size_t i = 0; i < out_height; ++i)
        for (std::size_t j = 0; j < out_width; ++j)
          for (std::size_t o = 0; o < spec.channels; ++o) {
            double sum = spec.bias ? named(layer, ".bias")[o] : 0;
            for (std::size_t c = 0; c < channels; ++c)
              for (std::size_t u = 0; u < spec.kernel; ++u)
                for (std::size_t v = 0; v < spec.kernel; ++v) {
                  // Unsigned: a position before the image is past its end.
                  const std::size_t row = i * spec.stride + u - spec.padding;
                  const std::size_t column = j * spec.stride + v - spec.padding;
                  if (row >= height || column >= width) continue;
                  sum += weight[((o * channels + c) * spec.kernel + u) * spec.kernel + v] *
                         x[((b * height + row) * width + column) * channels + c];
                }
            y.push_back(sum);
          }
    return y;
  }

  Values apply(const LayerNode& layer, const LinearSpec& spec, const Values& x) {
    const auto weight = named(layer, ".weight");
    const std::size_t inputs = layer.input[0];
    Values y;
    for (std::size_t b = 0; b < batch_; ++b)
      for (std::size_t o = 0; o < spec.features; ++o) {
        double sum = spec.bias ? named(layer, ".bias")[o] : 0;
        for (std::size_t i = 0; i < inputs; ++i) sum += weight[o * inputs + i] * x[b * inputs + i];
        y.push_back(sum);
      }
    return y;
  }

  Values apply(const LayerNode&, const ReluSpec&, Values x) {
    for (double& value : x) value = std::max(value, 0.0);
    return x;
  }

  Values apply(const LayerNode& layer, const MaxPoolSpec& spec, const Values& x) {
    const std::size_t height = layer.input[0], width = layer.input[1], channels = layer.input[2];
    Values y;
    for (std::size_t b = 0; b < batch_; ++b)
      for (std::size_t i = 0; i < layer.output[0]; ++i)
        for (std::size_t j = 0; j < layer.output[1]; ++j)
          for (std::size_t c = 0; c < channels; ++c) {
            double largest = -INFINITY;
            for (std::size_t u = 0; u < spec.window; ++u)
              for (std::size_t v = 0; v < spec.window; ++v)
                largest = std::max(
                    largest,
                    x[((b * height + i * spec.stride + u) * width + j * spec.stride + v) * channels + c]);
            y.push_back(largest);
          }
    return y;
  }

  Values apply(const LayerNode& layer, const GlobalAveragePoolSpec&, const Values& x) {
    const std::size_t pixels = layer.input[0] * layer.input[1], channels = layer.input[2];
    Values y(batch_ * channels, 0.0);
    for (std::size_t i = 0; i < x.size(); ++i)
      y[i / (pixels * channels) * channels + i % channels] += x[i] / static_cast<double>(pixels);
    return y;
  }

  Values apply(const LayerNode& layer, const BatchNormSpec&, Values x) {
    const std::size_t channels = layer.input[layer.input.rank() - 1], rows = x.size() / channels;
    const auto count = static_cast<double>(rows);
    for (std::size_t c = 0; c < channels; ++c) {
      double mean = 0, variance = 0;
      for (std::size_t r = 0; r < rows; ++r) mean += x[r * channels + c] / count;
      for (std::size_t r = 0; r < rows; ++r) variance += std::pow(x[r * channels + c] - mean, 2) / count;
      if (!training_) {
        mean = named(layer, ".running_mean")[c];
        variance = named(layer, ".running_var")[c];
      }
      for (std::size_t r = 0; r < rows; ++r) {
        double& value = x[r * channels + c];
        value = (value - mean) / std::sqrt(variance + 1e-5) * named(layer, ".weight")[c] +
                named(layer, ".bias")[c];
      }
    }
    return x;
  }

  Values apply(const LayerNode& layer, const DropoutSpec& spec, Values x) {
    if (!training_) return x;
    const std::size_t row = x.size() / batch_;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::uint64_t sample = dropout_.first_sample + i / row;
      const Philox random(dropout_.seed, RandomPurpose::dropout, dropout_.values->step,
                          (std::uint64_t{layer.index} << 32) + sample);
      x[i] = random.uniform(i % row) < spec.probability ? 0 : x[i] / (1 - double{spec.probability});
    }
    return x;
  }

  Values apply(const LayerNode& layer, const FlattenSpec&, const Values& x) {
    if (layer.input.rank() == 1) return x;
    const std::size_t pixels = layer.input[0] * layer.input[1], channels = layer.input[2];
    Values y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t b = i / (pixels * channels), pixel = i / channels % pixels, c = i % channels;
      y[(b * channels + c) * pixels + pixel] = x[i];
    }
    return y;
  }

  Values apply(const LayerNode& layer, const ResidualSpec&, const Values& x) {
    Values main = x, shortcut = x;
    for (const LayerNode& inner : layer.main) main = forward(inner, main);
    for (const LayerNode& inner : layer.shortcut) shortcut = forward(inner, shortcut);
    for (std::size_t i = 0; i < main.size(); ++i) main[i] += shortcut[i];
    return main;
  }

  std::span<double> range(const ArenaSlice& slice) {
    return std::span(weights_).subspan(slice.range.begin, slice.range.size());
  }
  std::span<double> named(const LayerNode& layer, const char* suffix) {
    return range(model_.arena().find(layer.name + suffix));
  }

  const Model& model_;
  std::size_t batch_;
  kernels::DropoutKey dropout_;
  bool training_;
  Values weights_;
};

}  // namespace annulus::test
