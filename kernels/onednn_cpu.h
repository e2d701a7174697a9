// A oneDNN primitive with its arguments bound once: what changes from call to call is where they lie.
#pragma once

#include <cstddef>
#include <dnnl.hpp>
#include <initializer_list>
#include <utility>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/error.h"

namespace annulus::kernels::cpu {

using Dims = dnnl::memory::dims;
using FormatTag = dnnl::memory::format_tag;

/// A dense f32 layout.
inline dnnl::memory::desc f32_desc(const Dims& dims, FormatTag tag) {
  return {dims, dnnl::memory::data_type::f32, tag};
}

inline dnnl_dim_t dim(std::size_t extent) { return static_cast<dnnl_dim_t>(extent); }

/// Attributes of every primitive here: the plan owns the scratchpad.
inline dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

/// The engine and stream of one plan, and one scratchpad that all its primitives share in turn.
struct OnednnContext {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  Buffer scratchpad;

  /// Grows the scratchpad; planning only.
  void need_scratchpad(std::size_t bytes) {
    if (bytes > scratchpad.bytes()) scratchpad = Buffer(Device::cpu(), bytes);
  }
};

/// One primitive, its layouts and its pointers. An empty one stands for a step that is not needed.
class OnednnPrimitive {
 public:
  OnednnPrimitive() = default;

  /// Takes the primitive of `description` and a layout for every argument: {DNNL_ARG_SRC, layout}, ...
  /// An argument with an empty layout is absent.
  template <class Primitive>
  static OnednnPrimitive plan(OnednnContext& context, const typename Primitive::primitive_desc& description,
                              std::initializer_list<std::pair<int, dnnl::memory::desc>> arguments) {
    OnednnPrimitive result;
    result.primitive_ = Primitive(description);
    for (const auto& [index, layout] : arguments) result.add(context, index, layout);
    result.add(context, DNNL_ARG_SCRATCHPAD, description.scratchpad_desc());
    context.need_scratchpad(description.scratchpad_desc().get_size());
    return result;
  }

  explicit operator bool() const { return static_cast<bool>(primitive_); }

  /// Says where an argument lies in the runs to come.
  void set(int index, void* data) {
    for (std::size_t i = 0; i < arguments_.size(); ++i)
      if (arguments_[i].arg == index) memories_[i].set_data_handle(data);
  }

  /// Returns when it is done.
  void run(const OnednnContext& context) {
    set(DNNL_ARG_SCRATCHPAD, context.scratchpad.data());
    // The C function takes the bound arguments as they are; the C++ one would build a hash map each time.
    const dnnl_status_t status = dnnl_primitive_execute(
        primitive_.get(), context.stream.get(), static_cast<int>(arguments_.size()), arguments_.data());
    require<DeviceError>(status == dnnl_success, "cpu: oneDNN failed to run a primitive, status {}",
                         static_cast<int>(status));
  }

 private:
  void add(const OnednnContext& context, int index, const dnnl::memory::desc& layout) {
    if (layout.is_zero()) return;
    memories_.push_back(dnnl::memory(layout, context.engine, DNNL_MEMORY_NONE));
    arguments_.push_back({index, memories_.back().get()});
  }

  dnnl::primitive primitive_;
  std::vector<dnnl::memory> memories_;
  std::vector<dnnl_exec_arg_t> arguments_;
};

/// Weights in the layout that a primitive prefers, in memory of the plan. Where the primitive takes the
/// caller's plain layout as it is, this is the caller's memory and nothing is copied.
class PackedWeights {
 public:
  PackedWeights() = default;

  /// For a primitive that reads weights: pack() before it runs.
  static PackedWeights read(OnednnContext& context, const dnnl::memory::desc& plain,
                            const dnnl::memory::desc& packed) {
    return PackedWeights(context, plain, packed, packed.get_size());
  }

  /// For a primitive that writes weights: it writes to memory(), then unpack().
  static PackedWeights written(OnednnContext& context, const dnnl::memory::desc& packed,
                               const dnnl::memory::desc& plain) {
    return PackedWeights(context, packed, plain, packed.get_size());
  }

  void* memory(void* plain) const { return reorder_ ? memory_.data() : plain; }

  void* pack(const OnednnContext& context, void* plain) {
    if (reorder_) copy(context, plain, memory_.data());
    return memory(plain);
  }

  void unpack(const OnednnContext& context, void* plain) {
    if (reorder_) copy(context, memory_.data(), plain);
  }

 private:
  PackedWeights(OnednnContext& context, const dnnl::memory::desc& from, const dnnl::memory::desc& to,
                std::size_t bytes) {
    if (from == to) return;
    const dnnl::reorder::primitive_desc description(context.engine, from, context.engine, to,
                                                    user_scratchpad());
    reorder_ = OnednnPrimitive::plan<dnnl::reorder>(context, description,
                                                    {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
    memory_ = Buffer(Device::cpu(), bytes);
  }

  void copy(const OnednnContext& context, void* from, void* to) {
    reorder_.set(DNNL_ARG_FROM, from);
    reorder_.set(DNNL_ARG_TO, to);
    reorder_.run(context);
  }

  OnednnPrimitive reorder_;
  Buffer memory_;
};

}  // namespace annulus::kernels::cpu
