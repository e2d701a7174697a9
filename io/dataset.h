// Datasets: labelled u8 images, read one sample at a time. Where the bytes come from is a spec string.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace annulus {

enum class Split { train, test };

/// "train" or "test".
std::string_view name_of(Split split);

/// What a dataset says about itself.
struct DatasetInfo {
  std::string name;  ///< for messages: the spec it was opened with, and the split
  std::size_t size = 0;
  std::size_t height = 0;
  std::size_t width = 0;
  std::size_t channels = 0;
  std::size_t classes = 0;  ///< labels are in [0, classes)
  std::vector<float>
      mean;  ///< per channel, of pixel / 255 over the *training* split, whichever split this is
  std::vector<float> stddev;  ///< likewise; 1 for a channel that never varies
};

/// Labelled images. Immutable: any number of threads may read at once.
class Dataset {
 public:
  virtual ~Dataset() = default;

  const DatasetInfo& info() const { return info_; }
  std::size_t size() const { return info_.size; }
  std::size_t height() const { return info_.height; }
  std::size_t width() const { return info_.width; }
  std::size_t channels() const { return info_.channels; }
  std::size_t classes() const { return info_.classes; }
  std::size_t image_bytes() const { return info_.height * info_.width * info_.channels; }

  /// Writes the image of sample `index` < size(), [height, width, channels], to image[0 .. image_bytes()).
  virtual void read(std::size_t index, std::uint8_t* image) const = 0;

  /// The label of sample `index` < size(), in [0, classes()).
  virtual std::int32_t label(std::size_t index) const = 0;

 protected:
  explicit Dataset(DatasetInfo info) : info_(std::move(info)) {}

 private:
  DatasetInfo info_;
};

/// Opens one split of a dataset. `spec` is one of (docs/data.md has the details)
///   fashion-mnist              found in $ANNULUS_DATA, the Debian package's folder or ~/.cache/annulus
///   idx:DIR[,classes=N]        train-images-idx3-ubyte, ... as for MNIST, plain or .gz; N is 10 if not given
///   cifar10:DIR                data_batch_1.bin ... data_batch_5.bin, test_batch.bin
///   hdf5:FILE[,test=FILE][,classes=N]   u8 `images` and integer `labels`
///   synthetic:HxWxC[,classes=N][,samples=N][,seed=N]
///   PATH                       a folder or file of one of these kinds, recognised by what is in it
/// Throws ConfigError if the spec is wrong, and DataError that names the file if the data is missing,
/// truncated or inconsistent.
std::unique_ptr<Dataset> open_dataset(std::string_view spec, Split split);

/// False if `spec` names an HDF5 file that holds training data only; every other kind has both splits.
bool has_test_split(std::string_view spec);

}  // namespace annulus
