// Kernels are compiled with -fsanitize=thread and -fsanitize=alignment, but not linked with their run-time
// libraries: the calls that the compiler puts before every memory access end here instead. On the host side
// of the same sources they do nothing.
#include <cstddef>
#include <cstdint>

#include "block.h"
#include "report.h"

namespace {

using namespace virtual_gpu;

template <bool IsWrite>
void check(const void* address, std::size_t bytes, const void* code) {
  if (in_device_code()) check_device_access(address, bytes, IsWrite, code);
}

}  // namespace

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define ANNULUS_ACCESS(bytes)                                                                           \
  void __tsan_read##bytes(void* at) { check<false>(at, bytes, __builtin_return_address(0)); }           \
  void __tsan_write##bytes(void* at) { check<true>(at, bytes, __builtin_return_address(0)); }           \
  void __tsan_unaligned_read##bytes(void* at) { check<false>(at, bytes, __builtin_return_address(0)); } \
  void __tsan_unaligned_write##bytes(void* at) { check<true>(at, bytes, __builtin_return_address(0)); }
ANNULUS_ACCESS(1)
ANNULUS_ACCESS(2)
ANNULUS_ACCESS(4)
ANNULUS_ACCESS(8)
ANNULUS_ACCESS(16)
#undef ANNULUS_ACCESS

void __tsan_read_range(void* at, std::size_t bytes) { check<false>(at, bytes, __builtin_return_address(0)); }
void __tsan_write_range(void* at, std::size_t bytes) { check<true>(at, bytes, __builtin_return_address(0)); }

// Host code in .cu files counts references and waits at barriers.
#define ANNULUS_ATOMIC(bits)                                                                            \
  using Atomic##bits = std::uint##bits##_t;                                                             \
  Atomic##bits __tsan_atomic##bits##_load(const volatile Atomic##bits* at, int) {                       \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                       \
  }                                                                                                     \
  void __tsan_atomic##bits##_store(volatile Atomic##bits* at, Atomic##bits value, int) {                \
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                                      \
  }                                                                                                     \
  Atomic##bits __tsan_atomic##bits##_fetch_add(volatile Atomic##bits* at, Atomic##bits value, int) {    \
    return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);                                             \
  }                                                                                                     \
  Atomic##bits __tsan_atomic##bits##_fetch_sub(volatile Atomic##bits* at, Atomic##bits value, int) {    \
    return __atomic_fetch_sub(at, value, __ATOMIC_SEQ_CST);                                             \
  }                                                                                                     \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile Atomic##bits* at, Atomic##bits* expected,  \
                                                    Atomic##bits value, int, int) {                     \
    return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }
ANNULUS_ATOMIC(8)
ANNULUS_ATOMIC(32)
ANNULUS_ATOMIC(64)
#undef ANNULUS_ATOMIC

// What the compiler passes for a pointer that does not have its type's alignment (libubsan's interface).
struct MisalignedAccess {
  struct {
    const char* file;
    std::uint32_t line, column;
  } place;
  const void* type;
  unsigned char log_alignment;
  unsigned char kind;
};

void __ubsan_handle_type_mismatch_v1_abort(MisalignedAccess* access, std::uintptr_t pointer) {
  report(nullptr, "misaligned access: {:#x} is not a multiple of {} at {}:{}", pointer,
         1u << access->log_alignment, access->place.file, access->place.line);
}

}  // extern "C"
