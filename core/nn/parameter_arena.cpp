#include "core/nn/parameter_arena.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/base/half.h"
#include "core/base/nearest_name.h"
#include "core/base/philox.h"
#include "kernels/elementwise.h"

namespace annulus {
namespace {

/// FNV-1a, 64 bits: tells the random numbers of one parameter from those of another.
std::uint64_t hash(std::string_view name) {
  std::uint64_t value = 0xcbf29ce484222325u;
  for (const char character : name) {
    value ^= static_cast<unsigned char>(character);
    value *= 0x100000001b3u;
  }
  return value;
}

void zero(const Buffer& buffer) {
  const StreamView stream(buffer.device(), nullptr);  // the device's default stream
  zero_bytes(stream, buffer.data(), buffer.bytes());
  stream.synchronize();
}

}  // namespace

ParameterArena::ParameterArena(std::vector<ArenaSlice> slices, Device device,
                               const ArenaAllocator& gradient_allocator, Precision precision)
    : slices_(std::move(slices)), precision_(precision) {
  require<ConfigError>(precision == Precision::f32 || device.is_cuda(),
                       "precision {} needs a CUDA device; the CPU computes in f32", name_of(precision));
  std::stable_partition(slices_.begin(), slices_.end(),
                        [](const ArenaSlice& slice) { return slice.role == ArenaSlice::Role::buffer; });
  std::size_t end = kAlignment;  // the statistics' slice
  for (ArenaSlice& slice : slices_) {
    slice.range = {end, end + slice.shape.elements()};
    end = padded(slice.range.end);
    if (slice.role == ArenaSlice::Role::buffer) parameters_begin_ = end;
  }
  elements_ = end;
  for (auto it = slices_.begin(); it != slices_.end(); ++it)
    require<ConfigError>(
        std::none_of(slices_.begin(), it, [&](const ArenaSlice& other) { return other.name == it->name; }),
        "two tensors of the model are named \"{}\"", it->name);

  const std::size_t bytes = elements_ * sizeof(float);
  weights_ = Buffer(device, bytes);
  gradients_ = gradient_allocator ? gradient_allocator(device, bytes) : Buffer(device, bytes);
  require<ShapeError>(gradients_.device() == device && gradients_.bytes() >= bytes,
                      "the gradient allocator gave {} bytes on {}, but the arena needs {} on {}",
                      gradients_.bytes(), gradients_.device().to_string(), bytes, device.to_string());
  zero(weights_);
  zero(gradients_);
  if (precision == Precision::bf16) rounded_ = Buffer(device, elements_ * sizeof(BFloat16));
}

std::size_t ParameterArena::parameter_count() const {
  std::size_t count = 0;
  for (const ArenaSlice& slice : slices_)
    if (slice.role == ArenaSlice::Role::parameter) count += slice.range.size();
  return count;
}

const ArenaSlice& ParameterArena::find(std::string_view name) const {
  const auto found = std::find_if(slices_.begin(), slices_.end(),
                                  [&](const ArenaSlice& slice) { return slice.name == name; });
  if (found != slices_.end()) return *found;
  std::vector<std::string_view> names(slices_.size());
  std::transform(slices_.begin(), slices_.end(), names.begin(),
                 [](const ArenaSlice& slice) -> std::string_view { return slice.name; });
  fail<ConfigError>("the model has no tensor \"{}\"{}", name, did_you_mean(name, names));
}

void ParameterArena::initialise(std::uint64_t seed) {
  // Drawn on the host, so that every kind of device starts from the same bits.
  std::vector<float> host(elements_, 0.0f);
  for (const ArenaSlice& slice : slices_) {
    const Philox random(seed, RandomPurpose::initialise, hash(slice.name));
    const float bound = slice.initial.uniform_bound;
    for (std::size_t i = 0; i < slice.range.size(); ++i)
      host[slice.range.begin + i] = bound > 0 ? (2 * random.uniform(i) - 1) * bound : slice.initial.constant;
  }
  const StreamView stream(device(), nullptr);
  copy_bytes(stream, weights_.data(), host.data(), elements_ * sizeof(float));
  stream.synchronize();
  weights_changed();
}

Tensor ParameterArena::compute_weights(ElementRange range) const {
  if (precision_ != Precision::bf16) return weights(range);
  return Tensor(static_cast<BFloat16*>(rounded_.data()) + range.begin, {range.size()}, DType::bf16, device());
}

void ParameterArena::refresh_compute_weights(StreamView stream) {
  if (precision_ == Precision::bf16 && rounded_is_stale_)
    kernels::cast(stream, weights(), compute_weights(ElementRange{0, elements_}));
  rounded_is_stale_ = false;
}

Tensor ParameterArena::view(const Buffer& buffer, ElementRange range) const {
  return Tensor(static_cast<float*>(buffer.data()) + range.begin, {range.size()}, DType::f32, device());
}

}  // namespace annulus
