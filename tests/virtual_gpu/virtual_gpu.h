// What a test can ask of the virtual GPU, and tell it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace virtual_gpu {

/// What this process has done on one device so far.
struct DeviceLedger {
  bool has_context = false;         ///< something made the device current or used it
  std::size_t allocations = 0;      ///< live ones
  std::size_t allocated_bytes = 0;  ///< live ones
  std::size_t peak_bytes = 0;
  std::size_t total_allocations = 0;  ///< ever made
  std::size_t copied_bytes = 0;       ///< to, from or within the device
  std::size_t launches = 0;           ///< kernels that ran
  std::size_t graph_launches = 0;
};

DeviceLedger ledger(int device);

/// Chooses the schedule of all work from now on: which stream runs next and how late, the order of blocks and
/// of threads between barriers. $ANNULUS_VIRTUAL_GPU_SEED chooses the first. Waits for all streams.
void set_seed(std::uint64_t seed);

/// Makes the nth allocation of device or page-locked memory from now on fail (1 is the next one); 0 makes
/// none fail.
void fail_allocation(std::size_t nth);

/// Makes the nth kernel that runs on `device` from now on fail. As with a real device, nothing after it runs,
/// every call for the device returns cudaErrorLaunchFailure, and its memory is lost to the process.
void fail_launch(int device, std::size_t nth);

/// Makes the nth kernel that runs on `device` from now on run for ever: its stream never gets past it. A call
/// that would wait for it is reported.
void hang_launch(int device, std::size_t nth);

/// Ends such faults: the device works again, and a kernel that hung is over, without an effect.
void revive(int device);

/// Products that cuBLASLt has no algorithm for from now on.
enum class RefusedMatmuls { none, with_bias_gradient, all };
void refuse_matmuls(RefusedMatmuls refused);

/// What memory holds that was allocated sparsely. It reads as zeros either way.
enum class SparseContents {
  unwritten,  ///< to read it is a fault
  zeros       ///< as if written
};

/// While one exists, device allocations of any size succeed: pages of them exist once they are touched. For
/// arrays of more than 2^31 elements, together with OnlyBlocks.
class SparseAllocations {
 public:
  explicit SparseAllocations(SparseContents contents);
  ~SparseAllocations();
  SparseAllocations(const SparseAllocations&) = delete;
  SparseAllocations& operator=(const SparseAllocations&) = delete;
};

/// While one exists, a launch of `blocks` blocks runs only those that `select(blocks)` numbers, counted with
/// x fastest.
class OnlyBlocks {
 public:
  using Select = std::function<std::vector<std::size_t>(std::size_t blocks)>;
  explicit OnlyBlocks(Select select);
  ~OnlyBlocks();
  OnlyBlocks(const OnlyBlocks&) = delete;
  OnlyBlocks& operator=(const OnlyBlocks&) = delete;
};

/// Host and device memory that is never freed, and streams and events never destroyed, end the process with a
/// report. This is that report, without the end; empty if there is nothing to report.
std::string leak_report();

}  // namespace virtual_gpu
