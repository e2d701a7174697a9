// What a test can ask of the virtual GPU, and tell it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace virtual_gpu {

/// What this process has done on one device so far.
struct DeviceLedger {
  bool has_context = false;         ///< something made the device current or used it
  std::size_t allocations = 0;      ///< live ones
  std::size_t allocated_bytes = 0;  ///< live ones
  std::size_t peak_bytes = 0;
  std::size_t total_allocations = 0;  ///< ever made
  std::size_t copied_bytes = 0;       ///< to, from or within the device
  std::size_t launches = 0;
};

DeviceLedger ledger(int device);

/// Chooses the schedule of all work from now on: which stream runs next and how late, the order of blocks and
/// of threads between barriers. $ANNULUS_VIRTUAL_GPU_SEED chooses the first. Waits for all streams.
void set_seed(std::uint64_t seed);

/// Makes the nth device allocation from now on fail (1 is the next one); 0 makes none fail.
void fail_allocation(std::size_t nth);

/// Host and device memory that is never freed, and streams and events never destroyed, end the process with a
/// report. This is that report, without the end; empty if there is nothing to report.
std::string leak_report();

}  // namespace virtual_gpu
