#include "core/base/dtype.h"

#include "core/base/error.h"

namespace annulus {
namespace {

struct Entry {
  DType dtype;
  std::string_view name;
  std::size_t size;
};

constexpr Entry kTable[] = {{DType::f32, "f32", 4}, {DType::f64, "f64", 8}, {DType::bf16, "bf16", 2},
                            {DType::f16, "f16", 2}, {DType::i32, "i32", 4}, {DType::i64, "i64", 8},
                            {DType::u8, "u8", 1}};

const Entry& entry(DType dtype) {
  for (const Entry& e : kTable)
    if (e.dtype == dtype) return e;
  fail<ShapeError>("{} is not a value of DType", static_cast<int>(dtype));
}

}  // namespace

std::size_t size_of(DType dtype) { return entry(dtype).size; }

std::string_view name_of(DType dtype) { return entry(dtype).name; }

DType parse_dtype(std::string_view text) {
  for (const Entry& e : kTable)
    if (e.name == text) return e.dtype;
  fail<ConfigError>("\"{}\" is not a dtype; known are f32, f64, bf16, f16, i32, i64, u8", text);
}

}  // namespace annulus
