// Element-wise kernels that move four f32 at a time: 16-byte accesses in the middle, single elements before
// the first and after the last aligned pack.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/device/launch.h"

namespace annulus::kernels {

/// `Width` consecutive elements, moved in one access if they have up to 16 bytes.
template <int Width, class T = float>
struct alignas(Width * sizeof(T) < 16 ? Width * sizeof(T) : 16) Pack {
  T value[Width];
};

template <int Width, class T>
__device__ Pack<Width, T> load(const T* from) {
  return *reinterpret_cast<const Pack<Width, T>*>(from);
}

template <int Width, class T>
__device__ void store(T* to, const Pack<Width, T>& pack) {
  *reinterpret_cast<Pack<Width, T>*>(to) = pack;
}

inline constexpr std::size_t kPackWidth = 4;

inline bool is_pack_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % (kPackWidth * sizeof(float)) == 0;
}

/// Elements before the first 16-byte boundary if all pointers reach it together (null ones do not matter),
/// otherwise `count`: then every element is moved alone.
inline std::size_t elements_before_first_pack(std::size_t count,
                                              std::initializer_list<const void*> pointers) {
  constexpr std::size_t kPackBytes = kPackWidth * sizeof(float);
  std::size_t misalignment = 0;
  bool first = true;
  for (const void* pointer : pointers) {
    if (pointer == nullptr) continue;
    const std::size_t here = reinterpret_cast<std::uintptr_t>(pointer) % kPackBytes;
    if (!first && here != misalignment) return count;
    misalignment = here;
    first = false;
  }
  const std::size_t before = (kPackBytes - misalignment) % kPackBytes / sizeof(float);
  return before < count ? before : count;
}

/// Calls body.template operator()<Width>(element) once for every element: with Width 4 for aligned packs,
/// with Width 1 for the others.
template <class Body>
__global__ void for_each_pack_kernel(std::size_t count, std::size_t before, Body body) {
  const std::size_t packs = (count - before) / kPackWidth;
  for (std::size_t i = global_thread(); i < packs; i += global_threads())
    body.template operator()<kPackWidth>(before + i * kPackWidth);
  const std::size_t others = count - packs * kPackWidth;
  for (std::size_t i = global_thread(); i < others; i += global_threads())
    body.template operator()<1>(i < before ? i : i + packs * kPackWidth);
}

/// Runs `body` over `count` elements; `pointers` are all the arrays that it moves packs of.
template <class Body>
void for_each_pack(StreamView stream, std::size_t count, std::initializer_list<const void*> pointers,
                   Body body) {
  constexpr unsigned kThreads = 256;
  const std::size_t before = elements_before_first_pack(count, pointers);
  launch(stream, {grid_stride_blocks(count, kThreads * kPackWidth)}, kThreads, 0, for_each_pack_kernel<Body>,
         count, before, body);
}

}  // namespace annulus::kernels
