// Images as operands of the matrix products, without an im2col copy in memory ("implicit GEMM": S. Chetlur et
// al., "cuDNN: Efficient primitives for deep learning", 2014, https://arxiv.org/abs/1410.0759).
#pragma once

#include "kernels/conv2d.h"
#include "kernels/device/fast_divisor.h"
#include "kernels/device/gemm_plan.h"

namespace annulus::kernels {

/// Extents of a convolution as 32-bit numbers, and divisions that take an index apart. A tap is
/// (kernel row, kernel column, channel), channel fastest.
struct ConvolutionIndex {
  explicit ConvolutionIndex(const Conv2dShape& s)
      : in_height(narrow(s.in_height)),
        in_width(narrow(s.in_width)),
        in_channels(narrow(s.in_channels)),
        out_height(narrow(s.out_height())),
        out_width(narrow(s.out_width())),
        out_channels(narrow(s.out_channels)),
        stride(narrow(s.stride)),
        padding(narrow(s.padding)),
        by_in_width(in_width),
        by_in_height(in_height),
        by_in_channels(in_channels),
        by_out_width(out_width),
        by_out_height(out_height),
        by_out_channels(out_channels),
        by_kernel_width(narrow(s.kernel_width)),
        by_stride(stride) {}

  std::uint32_t in_height, in_width, in_channels, out_height, out_width, out_channels, stride, padding;
  FastDivisor by_in_width, by_in_height, by_in_channels, by_out_width, by_out_height, by_out_channels,
      by_kernel_width, by_stride;

 private:
  static std::uint32_t narrow(std::size_t extent) { return static_cast<std::uint32_t>(extent); }
};

struct Position {
  std::uint32_t image, row, column;
};

struct Tap {
  std::uint32_t row, column, channel;
};

__device__ inline Position output_position(const ConvolutionIndex& index, std::uint32_t pixel) {
  Position position;
  position.column = pixel;
  position.row = index.by_out_width.divide(position.column);
  position.image = index.by_out_height.divide(position.row);
  return position;
}

__device__ inline Tap take_tap(const ConvolutionIndex& index, const FastDivisor& by_channels,
                               std::uint32_t tap) {
  Tap result;
  result.channel = tap;
  result.column = by_channels.divide(result.channel);
  result.row = index.by_kernel_width.divide(result.column);
  return result;
}

/// The first row or column of a line that is beyond the operand: no offset brings it back into an image.
inline constexpr std::uint32_t kOutside = std::uint32_t{1} << 31;

/// x under the kernel: element (output pixel, tap). As A of the forward product its rows are pixels and k are
/// taps (PixelsAreRows); for the weight gradient its rows are taps and k are pixels. Packs run over taps.
template <class T, bool PixelsAreRows, int Width>
struct PatchOperand {
  using Element = T;
  static constexpr bool kAlongK = PixelsAreRows;
  static constexpr int kWidth = Width;
  struct Line {
    // What a pixel or a tap adds to those of x; wrapped around if before the image.
    std::uint32_t row, column;
    std::size_t offset;  // the start of a pixel's image, or a tap's channel
  };

  const T* x;
  std::uint32_t rows;  // pixels or taps
  ConvolutionIndex index;

  __device__ Line line(std::size_t i) const {
    if (i >= rows) return {kOutside, 0, 0};
    const auto at = static_cast<std::uint32_t>(i);
    if constexpr (PixelsAreRows) {
      const Position p = output_position(index, at);
      return {p.row * index.stride - index.padding, p.column * index.stride - index.padding,
              image_offset(p.image)};
    } else {
      const Tap t = take_tap(index, index.by_in_channels, at);
      return {t.row - index.padding, t.column - index.padding, t.channel};
    }
  }

  __device__ PackBits<T, Width> load(const Line& line, std::uint32_t k) const {
    std::uint32_t row = line.row, column = line.column;
    std::size_t offset = line.offset;
    if constexpr (PixelsAreRows) {
      const Tap t = take_tap(index, index.by_in_channels, k);
      row += t.row, column += t.column, offset += t.channel;
    } else {
      const Position p = output_position(index, k);
      row += p.row * index.stride, column += p.column * index.stride, offset += image_offset(p.image);
    }
    // Unsigned, so that "before the image" is past its end.
    if (row >= index.in_height || column >= index.in_width) return {};
    return load_bits<Width>(x + offset + std::size_t{row * index.in_width + column} * index.in_channels);
  }

 private:
  __device__ std::size_t image_offset(std::uint32_t image) const {
    return std::size_t{image} * (index.in_height * index.in_width) * index.in_channels;
  }
};

/// dy where the kernel touched an input pixel: element (input pixel, tap over output channels), for the data
/// gradient.
template <class T, int Width>
struct TouchedOperand {
  using Element = T;
  static constexpr bool kAlongK = true;
  static constexpr int kWidth = Width;
  struct Line {
    std::uint32_t row, column;  // of the input pixel in the padded image
    std::size_t offset;         // the start of the image in dy
  };

  const T* dy;
  std::uint32_t rows;  // input pixels
  ConvolutionIndex index;

  __device__ Line line(std::size_t i) const {
    if (i >= rows) return {kOutside, 0, 0};
    auto column = static_cast<std::uint32_t>(i);
    std::uint32_t row = index.by_in_width.divide(column);
    const std::uint32_t image = index.by_in_height.divide(row);
    return {row + index.padding, column + index.padding,
            std::size_t{image} * (index.out_height * index.out_width) * index.out_channels};
  }

  __device__ PackBits<T, Width> load(const Line& line, std::uint32_t k) const {
    const Tap t = take_tap(index, index.by_out_channels, k);
    if (line.row == kOutside || line.row < t.row || line.column < t.column) return {};
    // Output pixels whose window starts `stride` apart: only exact multiples touch this pixel with this tap.
    std::uint32_t row_rest = line.row - t.row;
    std::uint32_t column_rest = line.column - t.column;
    const std::uint32_t row = index.by_stride.divide(row_rest);
    const std::uint32_t column = index.by_stride.divide(column_rest);
    if (row_rest != 0 || column_rest != 0 || row >= index.out_height || column >= index.out_width) return {};
    return load_bits<Width>(dy + line.offset + t.channel +
                            std::size_t{row * index.out_width + column} * index.out_channels);
  }
};

}  // namespace annulus::kernels
