// The ways in which a kernel may find an activation: every case of an element-wise or reducing kernel runs in
// each.
#pragma once

#include <fmt/core.h>

#include <string>
#include <vector>

#include "tests/support/device_array.h"
#include "tests/support/real_array.h"

namespace annulus::test {

/// A device, a dtype, and how many elements past an aligned address an array starts.
struct Storage {
  Device device;
  DType dtype = DType::f32;
  std::size_t skip = 0;

  std::string describe() const {
    return fmt::format("{} on {}, {} past an aligned address", name_of(dtype), device.to_string(), skip);
  }
};

/// f32 on every device, and bf16 on CUDA devices; aligned and not.
inline std::vector<Storage> storages() {
  std::vector<Storage> all;
  for (const Device device : test_devices())
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const std::size_t skip : {0, 3})
        if (dtype == DType::f32 || device.is_cuda()) all.push_back({device, dtype, skip});
  return all;
}

}  // namespace annulus::test
