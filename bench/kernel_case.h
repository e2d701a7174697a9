// What bench_kernels measures: a kernel in one shape and precision, computed by one or several engines.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/precision.h"
#include "core/base/stream.h"
#include "core/base/tensor.h"

namespace annulus::bench {

/// Arrays of one computation on the device of a stream. The n-th array of inputs holds the same numbers on
/// every device.
class Arrays {
 public:
  explicit Arrays(StreamView stream) : stream_(stream) {}

  /// Uniform in [low, high); f32 or, rounded, bf16.
  Tensor uniform(Shape shape, DType dtype = DType::f32, float low = -1, float high = 1);
  /// Whole numbers in [0, bound); u8, i32 or i64.
  Tensor integers(Shape shape, DType dtype, std::uint32_t bound);
  /// What a kernel writes; starts as zeros.
  Tensor output(Shape shape, DType dtype = DType::f32);
  /// Memory that nobody looks at.
  void* workspace(std::size_t bytes);

  const std::vector<Tensor>& outputs() const { return outputs_; }

 private:
  Tensor allocate(Shape shape, DType dtype);

  StreamView stream_;
  std::uint64_t inputs_ = 0;
  std::list<Buffer> memory_;
  std::vector<Tensor> outputs_;
};

/// One computation on its own arrays; may be submitted any number of times.
using Computation = std::function<void(StreamView stream)>;

struct KernelCase {
  std::string kernel;  ///< "conv2d forward"
  std::string shape;   ///< for people
  Precision precision = Precision::f32;
  double bytes = 0;    ///< that it cannot but move: every input read once and every output written once
  double flop = 0;     ///< additions and multiplications; 0 where memory is the limit
  bool large = false;  ///< too large for a CPU

  /// A computation by one engine. "annulus" is in every case and comes first.
  struct Engine {
    std::string name;
    std::function<Computation(Arrays& arrays, Device device)> make;
  };
  std::vector<Engine> engines;
};

/// Every case for a device: all precisions and engines that it has.
std::vector<KernelCase> memory_bound_cases(Device device);
std::vector<KernelCase> matrix_cases(Device device);

}  // namespace annulus::bench
