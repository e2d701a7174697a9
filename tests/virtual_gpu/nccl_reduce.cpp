// Reductions of the virtual GPU's NCCL. NCCL does not say in which order it adds: here a seed does, anew for
// every collective and for every part of it, as in a ring that each part starts somewhere else.
#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "core/base/half.h"
#include "nccl_clique.h"

namespace virtual_gpu {
namespace {

template <class T>
T combine(T a, T b, ncclRedOp_t op) {
  switch (op) {
    case ncclSum:
    case ncclAvg:
      if constexpr (std::is_integral_v<T>)
        return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));  // may wrap
      else
        return a + b;
    case ncclProd:
      if constexpr (std::is_integral_v<T>)
        return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
      else
        return a * b;
    case ncclMax:
      return std::max(a, b);
    case ncclMin:
      return std::min(a, b);
  }
  return a;
}

template <class T>
T average(T sum, std::size_t ranks) {
  return static_cast<T>(sum / static_cast<T>(ranks));
}

// 16-bit numbers are rounded after every step, as ranks that pass them on do.
template <class Half>
Half combine_halves(Half a, Half b, ncclRedOp_t op) {
  return annulus::from_float<Half>(combine(annulus::to_float(a), annulus::to_float(b), op));
}
annulus::BFloat16 combine(annulus::BFloat16 a, annulus::BFloat16 b, ncclRedOp_t op) {
  return combine_halves(a, b, op);
}
annulus::Float16 combine(annulus::Float16 a, annulus::Float16 b, ncclRedOp_t op) {
  return combine_halves(a, b, op);
}
annulus::BFloat16 average(annulus::BFloat16 sum, std::size_t ranks) {
  return annulus::to_bfloat16(annulus::to_float(sum) / static_cast<float>(ranks));
}
annulus::Float16 average(annulus::Float16 sum, std::size_t ranks) {
  return annulus::to_float16(annulus::to_float(sum) / static_cast<float>(ranks));
}

template <class T>
std::vector<char> reduce(const std::vector<const char*>& inputs, std::size_t count, ncclRedOp_t op,
                         std::mt19937_64& random) {
  const std::size_t ranks = inputs.size();
  std::vector<T> result(count);
  for (std::size_t part = 0; part < ranks; ++part) {
    const std::size_t begin = count * part / ranks, end = count * (part + 1) / ranks;
    std::vector<std::vector<T>> terms;
    for (const char* input : inputs)
      terms.emplace_back(reinterpret_cast<const T*>(input) + begin, reinterpret_cast<const T*>(input) + end);
    while (terms.size() > 1) {
      std::swap(terms[random() % terms.size()], terms.back());
      const std::vector<T> last = std::move(terms.back());
      terms.pop_back();
      std::vector<T>& other = terms[random() % terms.size()];
      for (std::size_t i = 0; i < last.size(); ++i) other[i] = combine(other[i], last[i], op);
    }
    if (op == ncclAvg)
      for (T& sum : terms[0]) sum = average(sum, ranks);
    std::copy(terms[0].begin(), terms[0].end(), result.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  std::vector<char> bytes(count * sizeof(T));
  std::memcpy(bytes.data(), result.data(), bytes.size());
  return bytes;
}

}  // namespace

std::vector<char> reduce_in_some_order(const std::vector<const char*>& inputs, std::size_t count,
                                       ncclDataType_t dtype, ncclRedOp_t op, std::mt19937_64& random) {
  switch (dtype) {
    case ncclInt8:
      return reduce<std::int8_t>(inputs, count, op, random);
    case ncclUint8:
      return reduce<std::uint8_t>(inputs, count, op, random);
    case ncclInt32:
      return reduce<std::int32_t>(inputs, count, op, random);
    case ncclUint32:
      return reduce<std::uint32_t>(inputs, count, op, random);
    case ncclInt64:
      return reduce<std::int64_t>(inputs, count, op, random);
    case ncclUint64:
      return reduce<std::uint64_t>(inputs, count, op, random);
    case ncclFloat16:
      return reduce<annulus::Float16>(inputs, count, op, random);
    case ncclFloat32:
      return reduce<float>(inputs, count, op, random);
    case ncclFloat64:
      return reduce<double>(inputs, count, op, random);
    case ncclBfloat16:
      return reduce<annulus::BFloat16>(inputs, count, op, random);
  }
  return {};
}

}  // namespace virtual_gpu
