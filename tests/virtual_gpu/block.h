// Runs the threads of one block as fibers, switching among them in a random order wherever they meet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "include/cuda_runtime.h"
#include "memory.h"

namespace virtual_gpu {

/// A kernel as queued by cudaLaunchKernelEx.
struct Launch {
  dim3 grid, block;
  std::size_t shared_bytes;
  void (*call)(const void*);
  const void* arguments;
  std::size_t argument_bytes;
  std::string name;
  std::uint32_t serial;
  std::vector<std::size_t> only;  ///< numbers of the blocks to run, x fastest; empty: all
};

/// Runs all blocks of a launch on the device with this memory. Blocks run one after the other in an order
/// that `random` chooses, which also chooses the order of the threads. Reports every fault.
void run_launch(const Launch& launch, DeviceMemory& memory, std::mt19937_64& random);

/// "  kernel ..., block (0, 0, 0), thread (3, 0, 0)\n" of the device thread that is running on this host
/// thread; empty if none is.
std::string describe_current_thread();

/// True while this host thread runs device code.
bool in_device_code();

/// Checks one access of the running device thread; `code` is where it came from.
void check_device_access(const void* address, std::size_t bytes, bool is_write, const void* code);

}  // namespace virtual_gpu
