// Element-wise kernels that move 16 bytes at a time: packs of four f32 or eight bf16 in the middle, single
// elements before the first and after the last aligned pack. Arithmetic is done in f32, whatever the packs
// hold.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "core/base/half.h"
#include "core/base/tensor.h"
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

/// Loads elements of any floating dtype as f32.
template <int Width, class T>
__device__ Pack<Width> load_float(const T* from) {
  const Pack<Width, T> stored = load<Width>(from);
  Pack<Width> pack;
  for (int i = 0; i < Width; ++i) pack.value[i] = to_float(stored.value[i]);
  return pack;
}

/// Stores f32 as elements of any floating dtype, rounded to nearest even.
template <int Width, class T>
__device__ void store_float(T* to, const Pack<Width>& pack) {
  Pack<Width, T> stored;
  for (int i = 0; i < Width; ++i) stored.value[i] = from_float<T>(pack.value[i]);
  store(to, stored);
}

/// Elements of T in the largest access.
template <class T>
inline constexpr int kPackWidth = 16 / sizeof(T);

/// Whether packs may start at `pointer`.
inline bool is_pack_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

/// Elements before the first place where packs of `width` elements of all arrays are aligned (empty ones do
/// not matter), or `count` if there is no such place: then every element is moved alone.
inline std::size_t elements_before_first_pack(std::size_t count, std::size_t width,
                                              std::initializer_list<Tensor> arrays) {
  const auto aligned_at = [&](std::size_t element) {
    return std::all_of(arrays.begin(), arrays.end(), [&](const Tensor& array) {
      const std::size_t bytes = size_of(array.dtype());
      const auto address = reinterpret_cast<std::uintptr_t>(array.data()) + element * bytes;
      return array.empty() || address % std::min<std::size_t>(width * bytes, 16) == 0;
    });
  };
  for (std::size_t before = 0; before < width && before < count; ++before)
    if (aligned_at(before)) return before;
  return count;
}

/// Calls body.template operator()<W>(element) once for every element: with W = Width for aligned packs, with
/// 1 for the others.
template <int Width, class Body>
__global__ void for_each_pack_kernel(std::size_t count, std::size_t before, Body body) {
  const std::size_t packs = (count - before) / Width;
  for (std::size_t i = global_thread(); i < packs; i += global_threads())
    body.template operator()<Width>(before + i * Width);
  const std::size_t others = count - packs * Width;
  for (std::size_t i = global_thread(); i < others; i += global_threads())
    body.template operator()<1>(i < before ? i : i + packs * Width);
}

/// Runs `body` over `count` elements; `arrays` are all that it moves packs of.
template <int Width, class Body>
void for_each_pack(StreamView stream, std::size_t count, std::initializer_list<Tensor> arrays, Body body) {
  constexpr unsigned kThreads = 256;
  const std::size_t before = elements_before_first_pack(count, Width, arrays);
  launch(stream, {grid_stride_blocks(count, kThreads * Width)}, kThreads, 0,
         for_each_pack_kernel<Width, Body>, count, before, body);
}

/// Calls visit(T()) with the type of activations of `dtype`, which the public functions have checked: float
/// or BFloat16.
template <class Visit>
void visit_activation(DType dtype, const Visit& visit) {
  if (dtype == DType::bf16)
    visit(BFloat16());
  else
    visit(float());
}

/// Calls run(std::integral_constant<int, Width>()) with the width of packs of T, or with 1.
template <class T, class Run>
void with_pack_width(bool packed, const Run& run) {
  if (packed)
    run(std::integral_constant<int, kPackWidth<T>>());
  else
    run(std::integral_constant<int, 1>());
}

}  // namespace annulus::kernels
