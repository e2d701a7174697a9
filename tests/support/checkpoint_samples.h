// A small checkpoint with one of everything, for tests of files.
#pragma once

#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "io/checkpoint.h"

namespace annulus::test {

/// Tensors of every dtype and role, with their memory. Tensors of one seed always have the same bytes.
class SampleTensors {
 public:
  explicit SampleTensors(int seed = 1) : seed_(seed) {
    add("0.weight", TensorRole::parameter, {2, 3, 2, 2}, DType::f32);
    add("0.bias", TensorRole::parameter, {2}, DType::f32);
    add("1.running_mean", TensorRole::buffer, {5}, DType::f32);
    add("0.weight.momentum", TensorRole::optimizer_state, {2, 3, 2, 2}, DType::f32, "0.weight");
    add("large", TensorRole::parameter, {40, 500}, DType::f32);
    add("scalar", TensorRole::buffer, {}, DType::f64);
    add("brain", TensorRole::parameter, {4, 2}, DType::bf16);
    add("half", TensorRole::parameter, {3}, DType::f16);
    add("counts", TensorRole::buffer, {3}, DType::i32);
    add("long counts", TensorRole::buffer, {2}, DType::i64);
    add("bytes", TensorRole::buffer, {7}, DType::u8);
    add("empty", TensorRole::parameter, {0, 3}, DType::f32);
    add("a/b%2F.ü", TensorRole::parameter, {2}, DType::f32);
    add(".", TensorRole::parameter, {1}, DType::f32);
  }
  SampleTensors(const SampleTensors&) = delete;
  SampleTensors& operator=(const SampleTensors&) = delete;

  /// `elements` are small whole numbers, exact in every dtype.
  void add(const std::string& name, TensorRole role, Shape shape, DType dtype, const std::string& of = {}) {
    std::vector<std::byte>& memory = memory_.emplace_back(shape.elements() * size_of(dtype) + 1);
    const Tensor tensor(memory.data(), shape, dtype);
    for (std::size_t i = 0; i < shape.elements(); ++i)
      put(tensor, i, static_cast<int>((static_cast<std::size_t>(seed_) + i + name.size()) % 100));
    const Provenance provenance{"host-1", "Some GPU", "GPU-1234", 3};
    tensors_.push_back(tensor_to_save(name, role, tensor, provenance, of));
    tensors_.back().record.device = tensors_.size() % 2 == 0 ? "cuda:1" : "cpu";
  }

  const std::vector<TensorToSave>& tensors() const { return tensors_; }

  static Attributes attributes() {
    return {{"step", std::int64_t{1234}},
            {"seed", std::int64_t{-5}},
            {"loss_scale", 0.1},
            {"epoch", std::int64_t{7}},
            {"whole", 3.0},
            {"model", std::string("flatten linear(2)")},
            {"comment", std::string("a \"ü\"\n")},
            {"nothing", std::string()}};
  }

 private:
  static void put(const Tensor& tensor, std::size_t i, int value) {
    const auto store = [&](auto number) {
      std::memcpy(static_cast<std::byte*>(tensor.data()) + i * sizeof(number), &number, sizeof(number));
    };
    switch (tensor.dtype()) {
      case DType::f32:
        return store(static_cast<float>(value));
      case DType::f64:
        return store(static_cast<double>(value));
      case DType::bf16: {
        const float number = static_cast<float>(value);
        std::uint32_t bits = 0;
        std::memcpy(&bits, &number, sizeof(bits));
        return store(static_cast<std::uint16_t>(bits >> 16));
      }
      case DType::f16:
        return store(static_cast<std::uint16_t>(value == 0 ? 0 : 0x3C00 + value));
      case DType::i32:
        return store(std::int32_t{value});
      case DType::i64:
        return store(std::int64_t{value});
      case DType::u8:
        return store(static_cast<std::uint8_t>(value));
    }
  }

  int seed_;
  std::deque<std::vector<std::byte>> memory_;
  std::vector<TensorToSave> tensors_;
};

/// Memory of the tensors of a checkpoint, to load into. Starts as bytes of 0xCC.
class Destinations {
 public:
  explicit Destinations(const std::vector<TensorToSave>& like) {
    for (const TensorToSave& tensor : like) {
      std::vector<std::byte>& memory = memory_.emplace_back(tensor.data.bytes() + 1, std::byte{0xCC});
      tensors_.push_back(
          {tensor.record.name, Tensor(memory.data(), tensor.data.shape(), tensor.data.dtype())});
    }
  }

  std::vector<TensorToLoad>& tensors() { return tensors_; }

  bool untouched() const {
    for (const std::vector<std::byte>& memory : memory_)
      for (const std::byte byte : memory)
        if (byte != std::byte{0xCC}) return false;
    return true;
  }

  bool equal(const std::vector<TensorToSave>& expected) const {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const Tensor& tensor = expected[i].data;
      if (std::memcmp(tensor.data(), memory_[i].data(), tensor.bytes()) != 0) return false;
      if (memory_[i].back() != std::byte{0xCC}) return false;
    }
    return true;
  }

 private:
  std::deque<std::vector<std::byte>> memory_;
  std::vector<TensorToLoad> tensors_;
};

}  // namespace annulus::test
