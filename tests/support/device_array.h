// Arrays of test cases on any device, and the devices to run them on.
#pragma once

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/step_values.h"
#include "core/base/tensor.h"

namespace annulus::test {

/// Whether ANNULUS_TEST_DEVICE=cuda asks for the GPU alone (see device_main.cpp).
inline bool cuda_only() {
  const char* const device = std::getenv("ANNULUS_TEST_DEVICE");
  return device != nullptr && std::string_view(device) == "cuda";
}

/// The CPU, and the first CUDA device where there is one: every case of a kernel test runs on each.
inline std::vector<Device> test_devices() {
  std::vector<Device> devices;
  if (!cuda_only()) devices.push_back(Device::cpu());
  if (cuda_device_count() > 0) devices.push_back(Device::cuda(0));
  return devices;
}

/// Owns elements on one device. New ones are poisoned (all bits set: NaN, -1 or 255), so that an output
/// element that an op forgets is seen.
template <class T>
class DeviceArray {
 public:
  DeviceArray(const Stream& stream, Shape shape)
      : DeviceArray(stream, shape, std::vector<T>(shape.elements(), poison())) {}

  DeviceArray(const Stream& stream, Shape shape, const std::vector<T>& values)
      : stream_(stream.view()), shape_(shape), buffer_(stream.device(), shape.elements() * sizeof(T)) {
    require<ShapeError>(values.size() == shape.elements(), "{} values for shape {}", values.size(),
                        shape.to_string());
    copy_bytes(stream_, buffer_.data(), values.data(), buffer_.bytes());
    stream_.synchronize();
  }

  Tensor tensor() const { return Tensor(buffer_.data(), shape_, DTypeOf<T>::value, buffer_.device()); }
  operator Tensor() const { return tensor(); }

  /// The elements, once all work on the stream is done.
  std::vector<T> values() const {
    std::vector<T> result(shape_.elements());
    copy_bytes(stream_, result.data(), buffer_.data(), buffer_.bytes());
    stream_.synchronize();
    return result;
  }

 private:
  static T poison() {
    T value;
    std::memset(&value, 0xff, sizeof value);
    return value;
  }

  StreamView stream_;
  Shape shape_;
  Buffer buffer_;
};

/// StepValues in memory of a device.
class DeviceStepValues {
 public:
  DeviceStepValues(const Stream& stream, const StepValues& values)
      : buffer_(stream.device(), sizeof(values)) {
    copy_bytes(stream, buffer_.data(), &values, sizeof(values));
    stream.synchronize();
  }

  const StepValues* get() const { return static_cast<const StepValues*>(buffer_.data()); }

 private:
  Buffer buffer_;
};

}  // namespace annulus::test
