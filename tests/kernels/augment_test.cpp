#include "kernels/augment.h"

#include <gtest/gtest.h>

#include <set>

#include "core/base/philox.h"
#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/expect_error.h"
#include "tests/support/storages.h"

namespace annulus {
namespace {

using kernels::AugmentOptions;
using test::DeviceArray;
using test::RealArray;
using test::Storage;

std::vector<std::uint8_t> bytes(std::size_t count) {
  const Philox random(5, RandomPurpose::synthetic);
  std::vector<std::uint8_t> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<std::uint8_t>(random.word(i));
  return values;
}

std::vector<float> run(const Storage& storage, AugmentOptions options, Shape shape,
                       const std::vector<std::uint8_t>& x, const std::vector<std::int64_t>& samples,
                       std::uint64_t epoch = 0) {
  const auto& [device, dtype, skip] = storage;
  const Stream stream(device);
  const test::DeviceStepValues values(stream, {.epoch = epoch});
  const bool draws = options.crop_padding > 0 || options.horizontal_flip;
  options.values = draws ? values.get() : nullptr;
  const RealArray y(stream, shape, dtype, skip);
  const bool channels_first = options.layout == kernels::ImageLayout::channels_first;
  const Shape x_shape = channels_first ? Shape{shape[0], shape[3], shape[1], shape[2]} : shape;
  kernels::augment(stream, options, DeviceArray<std::uint8_t>(stream, x_shape, x),
                   DeviceArray<std::int64_t>(stream, {samples.size()}, samples), y);
  return y.values();
}

AugmentOptions normalisation() {
  AugmentOptions options;
  options.mean = {0.1f, 0.2f, 0.3f, 0.4f};
  options.inverse_std = {2, 3, 4, 5};
  return options;
}

// Pads, crops and flips as the words of the random sequence say, one pixel at a time.
std::vector<float> reference(const AugmentOptions& options, Shape shape, const std::vector<std::uint8_t>& x,
                             const std::vector<std::int64_t>& samples, std::uint64_t epoch = 0) {
  const auto height = static_cast<std::ptrdiff_t>(shape[1]), width = static_cast<std::ptrdiff_t>(shape[2]);
  const auto padding = static_cast<std::ptrdiff_t>(options.crop_padding);
  const std::size_t channels = shape[3];
  std::vector<float> y;
  for (std::size_t b = 0; b < shape[0]; ++b) {
    const Philox random(options.seed, RandomPurpose::augment, epoch, static_cast<std::uint64_t>(samples[b]));
    const auto positions = static_cast<std::uint32_t>(2 * padding + 1);
    const auto top = static_cast<std::ptrdiff_t>(random.below(0, positions));
    const auto left = static_cast<std::ptrdiff_t>(random.below(1, positions));
    const bool flip = options.horizontal_flip && random.word(2) % 2 == 1;
    for (std::ptrdiff_t h = 0; h < height; ++h)
      for (std::ptrdiff_t w = 0; w < width; ++w)
        for (std::size_t c = 0; c < channels; ++c) {
          const std::ptrdiff_t from_h = h + top - padding,
                               from_w = (flip ? width - 1 - w : w) + left - padding;
          if (from_h < 0 || from_h >= height || from_w < 0 || from_w >= width) {
            y.push_back(0);
            continue;
          }
          const auto pixel =
              (b * shape[1] + static_cast<std::size_t>(from_h)) * shape[2] + static_cast<std::size_t>(from_w);
          y.push_back((static_cast<float>(x[pixel * channels + c]) / 255.0f - options.mean[c]) *
                      options.inverse_std[c]);
        }
  }
  return y;
}

// Two roundings in f32, and that to bf16.
test::Tolerance tolerance(DType dtype) {
  return {dtype == DType::f32 ? 2 : 0.51, 1e-7, test::epsilon_of(dtype)};
}

TEST(Augment, normalises_every_channel) {
  for (const Shape shape :
       {Shape{0, 3, 3, 1}, Shape{1, 1, 1, 1}, Shape{3, 28, 28, 1}, Shape{2, 5, 7, 3}, Shape{2, 4, 4, 4}}) {
    const auto x = bytes(shape.elements());
    const std::vector<std::int64_t> samples(shape[0], 9);
    for (const Storage& storage : test::storages()) {
      SCOPED_TRACE(shape.to_string() + ", " + storage.describe());
      test::expect_close("y", run(storage, normalisation(), shape, x, samples),
                         reference(normalisation(), shape, x, samples), tolerance(storage.dtype));
    }
  }
}

TEST(Augment, crops_and_flips_as_the_random_words_say) {
  const Shape shape{16, 6, 5, 3};
  const auto x = bytes(shape.elements());
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 0; i < 16; ++i) samples.push_back(1000000007 * i);
  for (const std::size_t padding : {0, 1, 4, 9})
    for (const bool flip : {false, true}) {
      AugmentOptions options = normalisation();
      options.crop_padding = padding;
      options.horizontal_flip = flip;
      options.seed = 77;
      for (const Storage& storage : test::storages()) {
        SCOPED_TRACE(fmt::format("padding {}, flip {}, {}", padding, flip, storage.describe()));
        test::expect_close("y", run(storage, options, shape, x, samples, 3),
                           reference(options, shape, x, samples, 3), tolerance(storage.dtype));
      }
    }
}

TEST(Augment, reads_images_with_the_channels_first) {
  const Shape shape{5, 6, 4, 3};
  const auto x = bytes(shape.elements());
  const std::size_t pixels = shape[1] * shape[2], channels = shape[3];
  std::vector<std::uint8_t> first(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t image = i / (pixels * channels), pixel = i / channels % pixels, channel = i % channels;
    first[(image * channels + channel) * pixels + pixel] = x[i];
  }
  for (const bool draw : {false, true}) {
    AugmentOptions options = normalisation();
    options.crop_padding = draw ? 2 : 0;
    options.horizontal_flip = draw;
    for (const Storage& storage : test::storages()) {
      options.layout = kernels::ImageLayout::channels_last;
      const auto expected = run(storage, options, shape, x, {3, 1, 4, 1, 5});
      options.layout = kernels::ImageLayout::channels_first;
      EXPECT_EQ(run(storage, options, shape, first, {3, 1, 4, 1, 5}), expected) << storage.describe();
    }
  }
}

TEST(Augment, does_not_depend_on_the_place_in_the_batch) {
  const std::size_t pixels = 8 * 8;
  const auto image = bytes(pixels);
  std::vector<std::uint8_t> two(image);
  two.insert(two.end(), image.begin(), image.end());
  AugmentOptions options = normalisation();
  options.crop_padding = 2;
  options.horizontal_flip = true;
  for (const Device device : test::test_devices()) {
    std::set<std::vector<float>> seen;
    for (std::int64_t sample = 0; sample < 20; ++sample) {
      const auto alone = run({device}, options, {1, 8, 8, 1}, image, {sample});
      const auto second = run({device}, options, {2, 8, 8, 1}, two, {99, sample});
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), second.begin() + pixels));
      seen.insert(alone);
    }
    EXPECT_GT(seen.size(), 10u) << "samples should be cropped differently";
    EXPECT_NE(run({device}, options, {1, 8, 8, 1}, image, {4}, 0),
              run({device}, options, {1, 8, 8, 1}, image, {4}, 1));
  }
}

TEST(Augment, refuses_what_does_not_fit) {
  test::expect_error<ShapeError>(
      [] {
        run({Device::cpu()}, {}, {1, 2, 2, 5}, bytes(20), {0});
      },
      {"at most 4 channels, not 5"});
  test::expect_error<ShapeError>(
      [] {
        run({Device::cpu()}, {}, {1, 2, 2, 1}, bytes(4), {0, 1});
      },
      {"sample_index must be i64 [1]"});
  test::expect_error<ShapeError>(
      [] {
        run({Device::cpu(), DType::bf16}, {}, {1, 2, 2, 1}, bytes(4), {0});
      },
      {"augment: y is bf16, which needs a CUDA device"});
}

}  // namespace
}  // namespace annulus
