#include "core/base/tensor.h"

#include <algorithm>
#include <limits>

namespace annulus {

Shape::Shape(std::initializer_list<std::size_t> extents) : Shape(extents.begin(), extents.size()) {}

Shape::Shape(const std::size_t* extents, std::size_t rank) : rank_(rank) {
  require<ShapeError>(rank <= kMaxRank, "a shape has at most {} extents, not {}", kMaxRank, rank);
  std::copy(extents, extents + rank, extents_.begin());
  std::size_t product = 1;
  for (const std::size_t extent : *this) {
    if (extent != 0 && product > std::numeric_limits<std::size_t>::max() / extent)
      fail<ShapeError>("shape {} has more elements than std::size_t can count", to_string());
    product *= extent;
  }
}

std::size_t Shape::elements() const {
  std::size_t product = 1;
  for (const std::size_t extent : *this) product *= extent;
  return product;
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (std::size_t axis = 0; axis < rank_; ++axis)
    text += fmt::format("{}{}", axis == 0 ? "" : ", ", extents_[axis]);
  return text + "]";
}

Tensor Tensor::reshaped(Shape shape) const {
  if (shape.elements() != elements())
    fail<ShapeError>("cannot view {} as {}: {} elements against {}", shape_.to_string(), shape.to_string(),
                     elements(), shape.elements());
  return Tensor(data_, shape, dtype_, device_);
}

}  // namespace annulus
