// The instructions of kernels/device/mma.h against tables that follow the figures of the PTX ISA manual,
// section "Matrix multiply-accumulate operation using mma instruction", and against plain products.
#include "kernels/device/mma.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "core/base/half.h"
#include "core/base/philox.h"

namespace {

using namespace annulus;

// Where an element is: in which lane, and in which of its elements (bf16: two to a register).
struct Place {
  unsigned lane, element;
};

// The first rows of the manual's figures; every further row of a table is four lanes on.
// "MMA .m16n8k16 fragment layout for matrix A": rows 0 to 7, and 8 to 15.
constexpr Place kBf16A[2][16] = {{{0, 0},
                                  {0, 1},
                                  {1, 0},
                                  {1, 1},
                                  {2, 0},
                                  {2, 1},
                                  {3, 0},
                                  {3, 1},
                                  {0, 4},
                                  {0, 5},
                                  {1, 4},
                                  {1, 5},
                                  {2, 4},
                                  {2, 5},
                                  {3, 4},
                                  {3, 5}},
                                 {{0, 2},
                                  {0, 3},
                                  {1, 2},
                                  {1, 3},
                                  {2, 2},
                                  {2, 3},
                                  {3, 2},
                                  {3, 3},
                                  {0, 6},
                                  {0, 7},
                                  {1, 6},
                                  {1, 7},
                                  {2, 6},
                                  {2, 7},
                                  {3, 6},
                                  {3, 7}}};
// "... for matrix B": column 0, rows 0 to 15.
constexpr Place kBf16B[16] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}, {3, 0}, {3, 1},
                              {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 2}, {2, 3}, {3, 2}, {3, 3}};
// "MMA .m16n8k8 fragment layout for matrix A with .tf32 type", "... for matrix B".
constexpr Place kTf32A[2][8] = {{{0, 0}, {1, 0}, {2, 0}, {3, 0}, {0, 2}, {1, 2}, {2, 2}, {3, 2}},
                                {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {0, 3}, {1, 3}, {2, 3}, {3, 3}}};
constexpr Place kTf32B[8] = {{0, 0}, {1, 0}, {2, 0}, {3, 0}, {0, 1}, {1, 1}, {2, 1}, {3, 1}};
// "... for accumulator matrix C/D": rows 0 to 7, and 8 to 15.
constexpr Place kC[2][8] = {{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}, {3, 0}, {3, 1}},
                            {{0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 2}, {2, 3}, {3, 2}, {3, 3}}};

constexpr unsigned kLanes = 32;

struct Registers {
  std::uint32_t a[4], b[2];
  float c[4];
};

__global__ void multiply(Registers* lanes, bool in_bf16) {
  Registers own = lanes[threadIdx.x];
  if (in_bf16)
    kernels::mma_bf16(own.c, own.a, own.b);
  else
    kernels::mma_tf32(own.c, own.a, own.b);
  for (unsigned i = 0; i < 4; ++i) lanes[threadIdx.x].c[i] = own.c[i];
}

class VirtualGpuMma : public ::testing::Test {
 protected:
  VirtualGpuMma() {
    cudaSetDevice(0);
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    cudaMalloc(&memory_, kBytes);
  }
  ~VirtualGpuMma() override {
    cudaFree(memory_);
    cudaStreamDestroy(stream_);
  }

  template <class T, class... Parameters, class... Arguments>
  std::vector<T> run(std::vector<T> values, std::size_t shared_bytes, void (*kernel)(T*, Parameters...),
                     Arguments... arguments) {
    T* const data = static_cast<T*>(memory_);
    cudaMemcpyAsync(data, values.data(), values.size() * sizeof(T), cudaMemcpyDefault, stream_);
    const cudaLaunchConfig_t config{1, kLanes, shared_bytes, stream_};
    cudaLaunchKernelEx(&config, kernel, data, arguments...);
    cudaMemcpyAsync(values.data(), data, values.size() * sizeof(T), cudaMemcpyDefault, stream_);
    cudaStreamSynchronize(stream_);
    return values;
  }

  static constexpr std::size_t kBytes = 4096;
  cudaStream_t stream_ = nullptr;
  void* memory_ = nullptr;
};

using VirtualGpuMmaDeathTest = VirtualGpuMma;

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Matrices of small integers, spread over the lanes as the tables say, multiply exactly.
TEST_F(VirtualGpuMma, bf16_fragments_lie_as_in_the_manual) {
  const Philox random(1, RandomPurpose::synthetic);
  float a[16][16], b[16][8], c[16][8];
  std::vector<Registers> lanes(kLanes);
  std::uint64_t drawn = 0;
  const auto draw = [&] { return static_cast<float>(random.below(drawn++, 401)) - 200.0f; };
  const auto put = [&](std::uint32_t* registers, unsigned element, float value) {
    registers[element / 2] |= std::uint32_t{to_bfloat16(value).bits} << element % 2 * 16;
  };
  for (unsigned row = 0; row < 16; ++row)
    for (unsigned k = 0; k < 16; ++k) {
      const Place place = kBf16A[row / 8][k];
      put(lanes[place.lane + row % 8 * 4].a, place.element, a[row][k] = draw());
    }
  for (unsigned k = 0; k < 16; ++k)
    for (unsigned column = 0; column < 8; ++column)
      put(lanes[kBf16B[k].lane + column * 4].b, kBf16B[k].element, b[k][column] = draw());
  for (unsigned row = 0; row < 16; ++row)
    for (unsigned column = 0; column < 8; ++column) {
      const Place place = kC[row / 8][column];
      lanes[place.lane + row % 8 * 4].c[place.element] = c[row][column] = draw();
    }
  const auto result = run(lanes, 0, multiply, true);
  for (unsigned row = 0; row < 16; ++row)
    for (unsigned column = 0; column < 8; ++column) {
      float expected = c[row][column];
      for (unsigned k = 0; k < 16; ++k) expected += a[row][k] * b[k][column];
      const Place place = kC[row / 8][column];
      EXPECT_EQ(result[place.lane + row % 8 * 4].c[place.element], expected) << row << ", " << column;
    }
}

TEST_F(VirtualGpuMma, tf32_fragments_lie_as_in_the_manual) {
  const Philox random(2, RandomPurpose::synthetic);
  float a[16][8], b[8][8];
  std::vector<Registers> lanes(kLanes);
  std::uint64_t drawn = 0;
  const auto draw = [&] { return static_cast<float>(random.below(drawn++, 401)) - 200.0f; };
  for (unsigned row = 0; row < 16; ++row)
    for (unsigned k = 0; k < 8; ++k) {
      const Place place = kTf32A[row / 8][k];
      lanes[place.lane + row % 8 * 4].a[place.element] = bits_of(a[row][k] = draw());
    }
  for (unsigned k = 0; k < 8; ++k)
    for (unsigned column = 0; column < 8; ++column)
      lanes[kTf32B[k].lane + column * 4].b[kTf32B[k].element] = bits_of(b[k][column] = draw());
  const auto result = run(lanes, 0, multiply, false);
  for (unsigned row = 0; row < 16; ++row)
    for (unsigned column = 0; column < 8; ++column) {
      float expected = 0;
      for (unsigned k = 0; k < 8; ++k) expected += a[row][k] * b[k][column];
      const Place place = kC[row / 8][column];
      EXPECT_EQ(result[place.lane + row % 8 * 4].c[place.element], expected) << row << ", " << column;
    }
}

// A kernel that forgets to round is off by up to a whole unit instead of half of one.
TEST_F(VirtualGpuMma, tf32_ignores_the_last_13_bits) {
  std::vector<Registers> lanes(kLanes);
  lanes[0].a[0] = bits_of(1 + 0x1p-10f + 0x1.8p-11f);  // A[0][0]
  lanes[0].b[0] = bits_of(1);                          // B[0][0]
  EXPECT_EQ(run(lanes, 0, multiply, false)[0].c[0], 1 + 0x1p-10f);
}

__global__ void round_all(float* values) {
  const std::uint32_t bits = kernels::round_to_tf32(values[threadIdx.x]);
  std::memcpy(&values[threadIdx.x], &bits, sizeof bits);
}

TEST_F(VirtualGpuMma, rounds_to_the_nearest_tf32_and_ties_away_from_zero) {
  const float infinity = HUGE_VALF;
  std::vector<float> values(kLanes, 0.0f), expected(kLanes, 0.0f);
  const float pairs[][2] = {{1 + 0x1p-12f, 1},
                            {1 + 0x1p-11f, 1 + 0x1p-10f},
                            {-1 - 0x1p-11f, -1 - 0x1p-10f},
                            {1 + 0x1.8p-10f, 1 + 0x1p-9f},
                            {-0.0f, -0.0f},
                            {0x1.fffffep127f, infinity},
                            {-infinity, -infinity},
                            {3, 3}};
  for (std::size_t i = 0; i < std::size(pairs); ++i) values[i] = pairs[i][0], expected[i] = pairs[i][1];
  values[31] = std::nanf("1");
  const std::vector<float> rounded = run(values, 0, round_all);
  for (std::size_t i = 0; i < 31; ++i) EXPECT_EQ(bits_of(rounded[i]), bits_of(expected[i])) << values[i];
  EXPECT_TRUE(std::isnan(rounded[31]));
}

// Copies 512 bytes to shared memory and loads them as four matrices; lane i says where row i starts: rows
// come in reverse, so that the addresses matter. 16 words a lane: the loaded ones are the first four.
__global__ void load_reversed(std::uint32_t* words, bool transposed, std::size_t misalignment, bool barrier) {
  std::uint32_t* const shared = kernels::shared_memory<std::uint32_t>();
  for (unsigned i = 0; i < 4; ++i) shared[threadIdx.x * 4 + i] = words[threadIdx.x * 4 + i];
  if (barrier) __syncwarp();
  std::uint32_t loaded[4];
  const char* const row = reinterpret_cast<const char*>(shared + (31 - threadIdx.x) * 4) + misalignment;
  if (transposed)
    kernels::load_matrices_transposed(loaded, row);
  else
    kernels::load_matrices(loaded, row);
  for (unsigned i = 0; i < 4; ++i) words[threadIdx.x * 4 + i] = loaded[i];
}

TEST_F(VirtualGpuMma, loads_matrices_as_in_the_manual) {
  std::vector<std::uint32_t> words(kLanes * 4);
  // Element of 16 bits e of row r: 8 r + e.
  for (std::uint32_t i = 0; i < words.size(); ++i) words[i] = 2 * i | (2 * i + 1) << 16;
  const auto plain = run(words, 512, load_reversed, false, std::size_t{0}, true);
  const auto transposed = run(words, 512, load_reversed, true, std::size_t{0}, true);
  const auto element = [](std::uint32_t matrix, std::uint32_t row, std::uint32_t column) {
    return (31 - (8 * matrix + row)) * 8 + column;
  };
  for (unsigned lane = 0; lane < kLanes; ++lane)
    for (unsigned matrix = 0; matrix < 4; ++matrix) {
      const unsigned group = lane / 4, pair = lane % 4 * 2;
      EXPECT_EQ(plain[lane * 4 + matrix], element(matrix, group, pair) | element(matrix, group, pair + 1)
                                                                             << 16);
      EXPECT_EQ(transposed[lane * 4 + matrix], element(matrix, pair, group) | element(matrix, pair + 1, group)
                                                                                  << 16);
    }
}

TEST_F(VirtualGpuMmaDeathTest, LoadsOfWrongRows) {
  const std::vector<std::uint32_t> words(kLanes * 4);
  EXPECT_DEATH(run(words, 512, load_reversed, false, std::size_t{8}, true), "misaligned access: ldmatrix");
  EXPECT_DEATH(run(words, 512, load_reversed, false, std::size_t{16}, true),
               "out of bounds: read of 16 bytes");
  EXPECT_DEATH(run(words, 512, load_reversed, false, std::size_t{1} << 40, true), "not in shared memory");
  EXPECT_DEATH(run(words, 512, load_reversed, false, std::size_t{0}, false), "data race|never-written");
}

__global__ void half_multiplies(Registers* lanes) {
  Registers own = lanes[threadIdx.x];
  if (threadIdx.x < 16) kernels::mma_bf16(own.c, own.a, own.b);
}

__global__ void half_multiplies_half_shuffles(Registers* lanes) {
  Registers own = lanes[threadIdx.x];
  if (threadIdx.x < 16)
    kernels::mma_bf16(own.c, own.a, own.b);
  else
    own.c[0] = __shfl_xor_sync(0xffffffffu, own.c[0], 1);
}

TEST_F(VirtualGpuMmaDeathTest, WarpDivergence) {
  const std::vector<Registers> lanes(kLanes);
  EXPECT_DEATH(run(lanes, 0, half_multiplies), "warp divergence: .* has exited");
  EXPECT_DEATH(run(lanes, 0, half_multiplies_half_shuffles),
               "warp divergence: a lane is at an instruction of the tensor cores, lane .* at another");
}

}  // namespace
