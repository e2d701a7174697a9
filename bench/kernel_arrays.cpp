#include "bench/kernel_case.h"
#include "core/base/error.h"
#include "core/base/philox.h"
#include "kernels/elementwise.h"

namespace annulus::bench {
namespace {

template <class T>
void fill_integers(std::vector<std::byte>& bytes, const Philox& random, std::uint32_t bound) {
  T* const values = reinterpret_cast<T*>(bytes.data());
  for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i)
    values[i] = static_cast<T>(random.below(i, bound));
}

}  // namespace

Tensor Arrays::uniform(Shape shape, DType dtype, float low, float high) {
  // A long array repeats itself: drawing numbers on the host takes longer than all that is measured.
  constexpr std::size_t kPeriod = 1 << 20;
  const Philox random(1, RandomPurpose::synthetic, inputs_++);
  const std::size_t count = shape.elements();
  std::vector<float> host(count);
  for (std::size_t i = 0; i < count; ++i)
    host[i] = i < kPeriod ? low + (high - low) * random.uniform(i) : host[i - kPeriod];
  const Tensor values = allocate(shape, DType::f32);
  copy_bytes(stream_, values.data(), host.data(), values.bytes());
  stream_.synchronize();
  if (dtype == DType::f32) return values;
  const Tensor rounded = allocate(shape, dtype);
  kernels::cast(stream_, values, rounded);
  stream_.synchronize();
  memory_.erase(std::prev(memory_.end(), 2));
  return rounded;
}

Tensor Arrays::integers(Shape shape, DType dtype, std::uint32_t bound) {
  const Philox random(1, RandomPurpose::synthetic, inputs_++);
  const Tensor values = allocate(shape, dtype);
  std::vector<std::byte> host(values.bytes());
  if (dtype == DType::u8)
    fill_integers<std::uint8_t>(host, random, bound);
  else if (dtype == DType::i32)
    fill_integers<std::int32_t>(host, random, bound);
  else
    fill_integers<std::int64_t>(host, random, bound);
  copy_bytes(stream_, values.data(), host.data(), host.size());
  stream_.synchronize();
  return values;
}

Tensor Arrays::output(Shape shape, DType dtype) {
  const Tensor tensor = allocate(shape, dtype);
  zero_bytes(stream_, tensor.data(), tensor.bytes());
  outputs_.push_back(tensor);
  return tensor;
}

void* Arrays::workspace(std::size_t bytes) { return memory_.emplace_back(stream_.device(), bytes).data(); }

Tensor Arrays::allocate(Shape shape, DType dtype) {
  return Tensor(workspace(shape.elements() * size_of(dtype)), shape, dtype, stream_.device());
}

}  // namespace annulus::bench
