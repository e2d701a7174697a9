// Instructions of the tensor cores: a warp multiplies small matrices that its 32 lanes hold together. PTX ISA
// manual, "Warp Level Matrix Multiply-Accumulate Instructions" (mma, ldmatrix) and cvt; sm_80 and later.
//
// Fragments: lane = 4 * group + member, group in 0..7, member in 0..3. In words of 32 bits,
//   A, 16 rows x 8 words of k   a[0] = (group, member)    a[1] = (group + 8, member)
//                               a[2] = (group, member+4)  a[3] = (group + 8, member + 4)
//   B, 8 words of k x 8 columns b[0] = (member, group)    b[1] = (member + 4, group)
//   C, 16 rows x 8 columns f32  c[0], c[1] = (group, 2 * member + 0, 1), c[2], c[3] = (group + 8, same)
// where a word is one tf32, or two bf16 with neighbouring k, the lower k in the lower half (manual: "Matrix
// Fragments for mma.m16n8k8" and "... for mma.m16n8k16 with floating point type").
//
// All of these are for whole warps: every lane of a warp calls them together.
#pragma once

#include <cstdint>

#include "kernels/device/launch.h"
#if ANNULUS_VIRTUAL_GPU
#include <virtual_mma.h>
#endif

namespace annulus::kernels {

/// c += a b for 16 values of k in bf16, summed in f32.
__device__ inline void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
#if ANNULUS_VIRTUAL_GPU
  virtual_gpu::mma_bf16(c, a, b);
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/// c += a b for 8 values of k in tf32, summed in f32. The operands come from round_to_tf32: of other f32 the
/// instruction ignores the last 13 bits.
__device__ inline void mma_tf32(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
#if ANNULUS_VIRTUAL_GPU
  virtual_gpu::mma_tf32(c, a, b);
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/// The nearest tf32 (8 bits of exponent, 10 of mantissa), ties away from zero, as the bits of an f32.
__device__ inline std::uint32_t round_to_tf32(float value) {
#if ANNULUS_VIRTUAL_GPU
  return virtual_gpu::round_to_tf32(value);
#else
  std::uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
#endif
}

/// Four matrices of 8 rows of 16 bytes from shared memory, one word of each to every lane: word `member` of
/// row `group` of matrix i to words[i]. Lane 8 i + r says where row r of matrix i starts, a multiple of 16
/// bytes.
__device__ inline void load_matrices(std::uint32_t (&words)[4], const void* row) {
#if ANNULUS_VIRTUAL_GPU
  virtual_gpu::load_matrices(words, row, false);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
#endif
}

/// The same of matrices of 8 x 8 elements of 16 bits, transposed: words[i] holds elements (2 * member, group)
/// and (2 * member + 1, group) of matrix i.
__device__ inline void load_matrices_transposed(std::uint32_t (&words)[4], const void* row) {
#if ANNULUS_VIRTUAL_GPU
  virtual_gpu::load_matrices(words, row, true);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
#endif
}

}  // namespace annulus::kernels
