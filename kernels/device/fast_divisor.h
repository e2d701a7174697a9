// Division by a number that is known when a kernel is launched: one multiplication and one shift.
// T. Granlund, P. Montgomery, "Division by invariant integers using multiplication", PLDI 1994.
#pragma once

#include <cstdint>

namespace annulus::kernels {

/// Divides numbers below 2^31 by a divisor in [1, 2^31).
class FastDivisor {
 public:
  explicit FastDivisor(std::uint32_t divisor) : divisor_(divisor), magic_(0), shift_(0) {
    while ((std::uint64_t{1} << shift_) < divisor) ++shift_;
    magic_ = static_cast<std::uint32_t>(
        (std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift_) - divisor) / divisor + 1);
  }

  /// Returns number / divisor and leaves the remainder in `number`.
  __device__ std::uint32_t divide(std::uint32_t& number) const {
    const auto high = static_cast<std::uint32_t>((std::uint64_t{number} * magic_) >> 32);
    const std::uint32_t quotient = (high + number) >> shift_;
    number -= quotient * divisor_;
    return quotient;
  }

 private:
  std::uint32_t divisor_, magic_, shift_;
};

}  // namespace annulus::kernels
