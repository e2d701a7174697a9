// Emulates the tensor cores' instructions: the lanes of a warp leave their registers where the others find
// them, meet, and compute their own part of the result.
#include <cstring>

#include "block.h"
#include "include/virtual_mma.h"
#include "report.h"

namespace virtual_gpu {
namespace {

constexpr unsigned kLanes = 32;
constexpr unsigned kMostThreads = 1024;

enum class Instruction : std::uint32_t { none, mma_bf16, mma_tf32, load_matrices };

// What a lane brings to an instruction of its warp.
struct Letter {
  Instruction instruction = Instruction::none;
  std::uint32_t serial = 0;  // among the instructions of this thread number
  std::uint32_t words[6] = {};
};

// One block runs at a time, so that a thread's number in it names it. With two boxes that are used in turn,
// no lane overwrites a letter that another has yet to read: it would have to pass the next meeting before.
Letter boxes[2][kMostThreads];
std::uint32_t serials[kMostThreads];

unsigned thread_number() {
  const uint3 at = thread_index(), extent = block_extent();
  return (at.z * extent.y + at.y) * extent.x + at.x;
}

// Meets the whole warp; returns the letters of its lanes.
const Letter* meet(Letter letter, const void* code) {
  const unsigned number = thread_number();
  letter.serial = ++serials[number];
  Letter* const box = boxes[letter.serial % 2];
  box[number] = letter;
  warp_exchange_xor(0xffffffffu, 0, 0);
  const Letter* const letters = box + number / kLanes * kLanes;
  for (unsigned lane = 0; lane < kLanes; ++lane)
    if (letters[lane].instruction != letter.instruction || letters[lane].serial != letter.serial)
      report(code, "warp divergence: a lane is at an instruction of the tensor cores, lane {} at another",
             lane);
  return letters;
}

Letter letter_of(Instruction instruction, const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  return {instruction, 0, {a[0], a[1], a[2], a[3], b[0], b[1]}};
}

float as_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The word that holds row `row` of A, or column `row` of B, at word `k` of 8.
std::uint32_t word_a(const Letter* letters, unsigned row, unsigned k) {
  return letters[row % 8 * 4 + k % 4].words[row / 8 + k / 4 * 2];
}
std::uint32_t word_b(const Letter* letters, unsigned column, unsigned k) {
  return letters[column * 4 + k % 4].words[4 + k / 4];
}

// Adds to each of a lane's four sums what `add(sum, a, b)` makes of the words of its row and column.
template <class Add>
void accumulate(float (&c)[4], const Letter* letters, Add add) {
  const unsigned lane = thread_number() % kLanes;
  for (unsigned i = 0; i < 4; ++i)
    for (unsigned k = 0; k < 8; ++k)
      add(c[i], word_a(letters, lane / 4 + i / 2 * 8, k), word_b(letters, lane % 4 * 2 + i % 2, k));
}

}  // namespace

void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  const Letter* const letters = meet(letter_of(Instruction::mma_bf16, a, b), __builtin_return_address(0));
  accumulate(c, letters, [](float& sum, std::uint32_t x, std::uint32_t y) {
    sum += as_float(x << 16) * as_float(y << 16);
    sum += as_float(x & 0xffff0000u) * as_float(y & 0xffff0000u);
  });
}

void mma_tf32(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  const Letter* const letters = meet(letter_of(Instruction::mma_tf32, a, b), __builtin_return_address(0));
  accumulate(c, letters, [](float& sum, std::uint32_t x, std::uint32_t y) {
    sum += as_float(x & 0xffffe000u) * as_float(y & 0xffffe000u);
  });
}

std::uint32_t round_to_tf32(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffffffu;
  if ((bits & 0x7fffffffu) == 0x7f800000u) return bits;
  return (bits + 0x1000u) & 0xffffe000u;
}

void load_matrices(std::uint32_t (&words)[4], const void* row, bool transposed) {
  const void* const code = __builtin_return_address(0);
  constexpr std::size_t kRowBytes = 16;
  constexpr std::size_t kSharedBytes = 48 * 1024;
  const auto offset =
      static_cast<std::size_t>(static_cast<const char*>(row) - static_cast<const char*>(shared_memory()));
  if (offset >= kSharedBytes) report(code, "ldmatrix reads {}, which is not in shared memory", row);
  if (offset % kRowBytes != 0)
    report(code, "misaligned access: ldmatrix reads a row at byte {} of shared memory", offset);
  check_device_access(row, kRowBytes, false, code);
  Letter letter{Instruction::load_matrices, 0, {}};
  std::memcpy(letter.words, row, kRowBytes);
  const Letter* const letters = meet(letter, code);
  const unsigned lane = thread_number() % kLanes, group = lane / 4, member = lane % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const Letter* const matrix = letters + 8 * i;
    const auto element = [&](unsigned r) { return matrix[r].words[group / 2] >> group % 2 * 16 & 0xffffu; };
    words[i] = transposed ? element(2 * member) | element(2 * member + 1) << 16 : matrix[group].words[member];
  }
}

}  // namespace virtual_gpu
