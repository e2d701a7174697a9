// The tensor cores' instructions that kernels/device/mma.h wraps, which says what they do. Every lane of a
// warp must call them together; anything else is reported.
#pragma once

#include <cstdint>

namespace virtual_gpu {

/// Products are exact and added in order of k.
void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);

/// The same; the last 13 bits of the operands are ignored.
void mma_tf32(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);

std::uint32_t round_to_tf32(float value);

/// Reports rows that are misaligned or not in shared memory, and whatever a read of 16 bytes reports.
void load_matrices(std::uint32_t (&words)[4], const void* row, bool transposed);

}  // namespace virtual_gpu
