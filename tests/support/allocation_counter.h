// Counts heap allocations of every thread of the program, those of libraries included, by standing in for
// malloc and its kin. Include it in one source of a test program.
//
// Not counted is what oneDNN itself takes and gives back while a primitive runs, which no caller can plan
// ahead: a small hash map of the arguments and, on processors without AVX-512, the packing buffers of its
// matrix products.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <new>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ANNULUS_COUNTS_ALLOCATIONS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ANNULUS_COUNTS_ALLOCATIONS 0
#endif
#endif
#ifndef ANNULUS_COUNTS_ALLOCATIONS
#define ANNULUS_COUNTS_ALLOCATIONS 1
#endif

namespace annulus::test {

/// False under a sanitizer, which has an allocator of its own.
inline constexpr bool kCountsAllocations = ANNULUS_COUNTS_ALLOCATIONS != 0;

inline std::atomic<std::size_t> allocation_count{0};

/// Whether an address lies in oneDNN's code.
inline bool is_in_onednn(void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr &&
         std::strstr(info.dli_fname, "libdnnl") != nullptr;
}

inline bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bw") != 0;
#else
  return false;
#endif
}

}  // namespace annulus::test

#if ANNULUS_COUNTS_ALLOCATIONS
extern "C" {
// glibc's own entry points.
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* data, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);

void* malloc(std::size_t size) noexcept {
  ++annulus::test::allocation_count;
  return __libc_malloc(size);
}

void* calloc(std::size_t count, std::size_t size) noexcept {
  ++annulus::test::allocation_count;
  return __libc_calloc(count, size);
}

void* realloc(void* data, std::size_t size) noexcept {
  ++annulus::test::allocation_count;
  return __libc_realloc(data, size);
}

void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  ++annulus::test::allocation_count;
  return __libc_memalign(alignment, size);
}

int posix_memalign(void** data, std::size_t alignment, std::size_t size) noexcept {
  if (annulus::test::has_avx512() || !annulus::test::is_in_onednn(__builtin_return_address(0)))
    ++annulus::test::allocation_count;
  *data = __libc_memalign(alignment, size);
  return *data == nullptr && size > 0 ? 12 /* ENOMEM */ : 0;
}
}

// Not inlined, so that the return address is the caller's.
__attribute__((noinline)) void* operator new(std::size_t size) {
  if (!annulus::test::is_in_onednn(__builtin_return_address(0))) ++annulus::test::allocation_count;
  void* const data = __libc_malloc(size);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
#endif
