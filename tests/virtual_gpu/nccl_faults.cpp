// Faults that tests inject.
#include "nccl_faults.h"

#include "nccl_clique.h"

namespace virtual_gpu {

void kill_nccl_rank(int device, std::size_t nth) {
  const Lock lock(machine().mutex);
  nccl().faults[device].kill = nth;
}

void hang_nccl_rank(int device, std::size_t nth) {
  const Lock lock(machine().mutex);
  nccl().faults[device].hang = nth;
}

void fail_nccl_rank(int device, std::size_t nth) {
  const Lock lock(machine().mutex);
  nccl().faults[device].fail = nth;
}

void heal_nccl_ranks() {
  const Lock lock(machine().mutex);
  nccl().faults.clear();
}

void set_nccl_patience(std::chrono::milliseconds patience) {
  const Lock lock(machine().mutex);
  machine().patience = patience;
}

}  // namespace virtual_gpu
