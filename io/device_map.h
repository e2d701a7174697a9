// map_location: which device a checkpoint's tensors go to, given the tags they were saved with.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/device.h"
#include "io/checkpoint.h"

namespace annulus {

/// Maps device tags to devices of the calling rank:
///
///   local                     the rank's own device, whatever the tag says
///   cpu                       the CPU
///   cuda                      the rank's own CUDA device, never "device 0"
///   cuda:K                    that device
///   saved                     the tag itself
///   cuda:0=cuda:1,cpu=local,*=local   tag by tag; * stands for every other tag
///
/// It only says where tensors should go. The embedder places the destinations there and hands them to
/// CheckpointReader::load; nothing is ever allocated on another device.
class DeviceMap {
 public:
  /// "local".
  DeviceMap() = default;

  /// Throws ConfigError that shows the accepted forms.
  static DeviceMap parse(std::string_view text);

  /// The device of every tensor, in the order of `tensors`. `own` is the rank's device, and
  /// `cuda_devices` how many CUDA devices it can see. Optimizer state follows its parameter.
  /// Throws ConfigError that lists the tags found if one is not covered, and DeviceError that names
  /// tensor, tag and device count if a device does not exist.
  std::vector<Device> resolve(std::span<const TensorRecord> tensors, Device own, int cuda_devices) const;

  /// Whether it says "local" or "cuda" somewhere, which mean nothing without a rank.
  bool needs_rank() const;

  /// What parse() reads.
  std::string to_string() const;

 private:
  /// One of the words above, or a device.
  struct Target {
    enum class Kind { local, own_cuda, saved, device } kind = Kind::local;
    Device device;
  };
  static Target parse_target(std::string_view text, std::string_view whole);
  static std::string to_string(const Target& target);
  const Target* find(const std::string& tag) const;

  std::map<std::string, Target> targets_;    ///< by tag
  std::optional<Target> others_ = Target{};  ///< the target of "*", or of a map of one word
};

}  // namespace annulus
