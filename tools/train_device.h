// Which device a rank trains on.
#pragma once

#include <span>
#include <string>

#include "core/base/device.h"
#include "io/checkpoint.h"
#include "nccl/rank_environment.h"
#include "tools/train_options.h"

namespace annulus {

struct DeviceChoice {
  Device device;
  std::string note;  ///< one line for the user if the choice may surprise, or empty
};

/// What --device asks for: the CPU, or the CUDA device with this rank's local rank. Throws DeviceError if
/// this host has too few devices for its ranks.
DeviceChoice choose_device(const TrainOptions& options, const RankEnvironment& environment);

/// The device that --map-location sends the tensors of a checkpoint to, given the rank's own. Throws
/// ConfigError if it sends them to several: a rank keeps its model on one.
Device map_device(const TrainOptions& options, std::span<const TensorRecord> tensors, Device own);

}  // namespace annulus
