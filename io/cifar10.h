// CIFAR-10's binary version: records of one label byte and 3072 pixels.
#pragma once

#include <memory>
#include <string>

#include "io/dataset.h"

namespace annulus {

/// Opens data_batch_1.bin ... data_batch_5.bin (train) or test_batch.bin (test) of `folder`; `name` is for
/// messages. Files store a plane of 32 x 32 pixels per colour; the dataset hands out [height, width,
/// channels] like every other. A file is any whole number of records. Throws DataError that names the file.
std::unique_ptr<Dataset> open_cifar10(const std::string& name, const std::string& folder, Split split);

}  // namespace annulus
