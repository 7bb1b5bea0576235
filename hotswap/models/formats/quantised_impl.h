// What readers of quantised weights share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hotswap/base/json.h"
#include "hotswap/layers/weight.h"
#include "hotswap/models/formats/weights.h"

namespace hotswap::quantised {

using Shape = std::vector<int64_t>;

// The stored tensors of one module, by the ends of their names.
class Parts {
 public:
  Parts(const Checkpoint& stored, std::string module, const Json& settings)
      : stored_(stored), module_(std::move(module)), settings_(settings) {}
  bool has(const std::string& part) const { return stored_.has(name(part)); }
  Shape shape(const std::string& part) const { return stored_.shape(name(part)); }
  at::ScalarType dtype(const std::string& part) const { return stored_.dtype(name(part)); }
  Tensor operator[](const std::string& part) const { return stored_.tensor(name(part)); }
  // The same, refused where it is of another type.
  Tensor of(const std::string& part, at::ScalarType dtype) const;
  const std::string& module() const { return module_; }
  const Json& settings() const { return settings_; }  // quantization_config
  [[noreturn]] void refuse(const std::string& expected, const std::string& got) const;
  void check(bool fits, const std::string& part, const std::string& expected) const;

 private:
  std::string name(const std::string& part) const { return module_ + "." + part; }
  const Checkpoint& stored_;
  std::string module_;
  const Json& settings_;
};

// One way in which a module's weight is stored.
struct Layout {
  const char* method;              // quant_method
  const char* format;              // for people
  std::vector<std::string> parts;  // those that make it this layout: all of them, and the first layout that has them
  std::vector<std::string> extra;  // beside them, where they are there
  Shape (*shape)(const Parts& parts);
  // Its elements in memory are those of `shape`.
  Weight (*read)(const Parts& parts);
};
const std::vector<Layout>& fp8_layouts();
const std::vector<Layout>& compressed_tensors_layouts();
const std::vector<Layout>& gptq_layouts();
const std::vector<Layout>& bitsandbytes_layouts();

// Settings that a method's readers do not know: an Error that names them.
void check_gptq_settings(const Json& settings);
void check_compressed_tensors_settings(const Json& settings);
void check_modelopt_settings(const Json& settings);
bool compressed_tensors_quantise(const Json& settings);  // some weights, not only a cache or activations

Shape shape_of_weight(const Parts& parts);  // of the tensor "weight"
// Of codes of four bits, two in a byte of the tensor `part`, [out, in / 2].
Shape shape_of_pairs(const Parts& parts, const std::string& part);
int64_t parts_of(int64_t size, int64_t part);  // how many, the last perhaps smaller

// Codes of `bits` bits, one after another from the low bit on in little-endian words: int32 [rows, words] -> uint8
// [rows, count].
Tensor unpacked_bits(const Tensor& words, int64_t bits, int64_t count);
// Codes [out, in] with zeros and scales [out, groups]: kInt4 where they fit in it, else kInt8.
Weight grouped(const Tensor& codes, const Tensor& zeros, const Tensor& scales, int64_t group);
// data [out, in] with one scale, one a row, or one a block of those sizes; refused where `scales` is none of them.
Weight scaled(const Parts& parts, WeightFormat format, const Tensor& data, const std::string& scales,
              const Shape& block);
// The 16 values of e2m1: sign, two bits of exponent, one of mantissa.
Tensor e2m1_table();

}  // namespace hotswap::quantised
