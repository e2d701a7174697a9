// Counts heap allocations of every thread of the program, those of libraries included, by standing in for
// malloc and its kin. Include it in one source of a test program.
//
// One exception is counted apart. oneDNN's interface makes an argument list per call of a primitive: some
// ten blocks of at most 128 bytes, freed before the call returns, that no caller can plan ahead.
#pragma once

#include <link.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
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

/// oneDNN's argument lists, in blocks.
inline std::atomic<std::size_t> argument_block_count{0};

/// Where oneDNN's code lies; empty until the program's constructors have run.
struct CodeRange {
  std::uintptr_t begin = 0, end = 0;
};

inline CodeRange find_onednn() {
  CodeRange range;
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* result) {
        if (std::strstr(object->dlpi_name, "libdnnl") == nullptr) return 0;
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const auto& segment = object->dlpi_phdr[i];
          if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
          const std::uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
          *static_cast<CodeRange*>(result) = {begin, begin + segment.p_memsz};
        }
        return 1;
      },
      &range);
  return range;
}

inline CodeRange onednn_code = find_onednn();

inline void count_allocation(std::size_t size, void* caller) {
  const auto address = reinterpret_cast<std::uintptr_t>(caller);
  const bool in_onednn = address >= onednn_code.begin && address < onednn_code.end;
  ++(in_onednn && size <= 128 ? argument_block_count : allocation_count);
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
  annulus::test::count_allocation(size, __builtin_return_address(0));
  return __libc_malloc(size);
}

void* calloc(std::size_t count, std::size_t size) noexcept {
  annulus::test::count_allocation(count * size, __builtin_return_address(0));
  return __libc_calloc(count, size);
}

void* realloc(void* data, std::size_t size) noexcept {
  annulus::test::count_allocation(size, __builtin_return_address(0));
  return __libc_realloc(data, size);
}

void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  annulus::test::count_allocation(size, __builtin_return_address(0));
  return __libc_memalign(alignment, size);
}

int posix_memalign(void** data, std::size_t alignment, std::size_t size) noexcept {
  annulus::test::count_allocation(size, __builtin_return_address(0));
  *data = __libc_memalign(alignment, size);
  return *data == nullptr && size > 0 ? 12 /* ENOMEM */ : 0;
}
}

// operator new too, out of line: who calls it can be seen only from here.
[[gnu::noinline]] void* operator new(std::size_t size) {
  annulus::test::count_allocation(size, __builtin_return_address(0));
  if (void* data = __libc_malloc(size == 0 ? 1 : size)) return data;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, std::size_t) noexcept { std::free(data); }
#endif
