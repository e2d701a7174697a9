// Arrays of more than 2^31 elements on the virtual GPU, of which a case writes and reads a few.
#pragma once

#include <algorithm>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/tensor.h"
#include "tests/virtual_gpu/virtual_gpu.h"

namespace annulus::test {

/// While it exists, allocations are sparse and unwritten, and launches run their last block only.
struct OnlyTheLastBlock {
  virtual_gpu::SparseAllocations sparse{virtual_gpu::SparseContents::unwritten};
  virtual_gpu::OnlyBlocks only{[](std::size_t blocks) { return std::vector<std::size_t>{blocks - 1}; }};
};

/// A tensor whose elements are set and read one range at a time.
template <class T = float>
class HugeArray {
 public:
  HugeArray(const Stream& stream, Shape shape)
      : stream_(stream.view()), shape_(shape), buffer_(stream.device(), shape.elements() * sizeof(T)) {}

  operator Tensor() const { return Tensor(buffer_.data(), shape_, DTypeOf<T>::value, buffer_.device()); }

  void set(std::size_t first, const std::vector<T>& values) {
    copy_bytes(stream_, static_cast<T*>(buffer_.data()) + first, values.data(), values.size() * sizeof(T));
    stream_.synchronize();
  }

  std::vector<T> get(std::size_t first, std::size_t count) const {
    std::vector<T> values(count);
    copy_bytes(stream_, values.data(), static_cast<T*>(buffer_.data()) + first, count * sizeof(T));
    stream_.synchronize();
    return values;
  }

 private:
  StreamView stream_;
  Shape shape_;
  Buffer buffer_;
};

}  // namespace annulus::test
