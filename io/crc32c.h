// CRC-32C (Castagnoli), the checksum of iSCSI (RFC 3720, appendix B.4) and of checkpoints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace annulus {

/// The CRC-32C of the bytes that `crc` is the checksum of, followed by `bytes`; 0 stands for no bytes yet.
/// Uses the processor's instruction where it has one.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0);

/// The same by table, for processors without the instruction and as its reference in tests.
std::uint32_t crc32c_portable(std::span<const std::byte> bytes, std::uint32_t crc = 0);

}  // namespace annulus
