// GGUF, llama.cpp's file format, versions 2 and 3, little-endian: metadata and tensors, mostly quantised.
//
//   GgufFile file("model.gguf");
//   file.at<std::string>("general.architecture");           // absent or another type: Error
//   file.get<double>("llama.rope.freq_base", 10000.0);
//   Tensor w = file.tensor("blk.0.attn_q.weight", at::kBFloat16);   // dequantised, shape as torch writes it
//
// The first part of a set (model-00001-of-00003.gguf) stands for all of it: the others beside it are read too.
//
// The file is taken for hostile: every count, length, offset and name is checked before it is used. What the names and
// keys mean for a model stands in gguf_model.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "hotswap/base/file.h"
#include "hotswap/layers/gguf_dequant.h"
#include "hotswap/layers/weight.h"

namespace hotswap {

// A tensor of divisors, which belongs to the config.
inline constexpr const char* kRopeDivisors = "rope_freqs.weight";

struct GgufTensor {
  const GgufType* type = nullptr;
  std::vector<int64_t> shape;  // torch's order: GGUF's reversed
  uint64_t offset = 0;         // bytes, from the start of its file's data
  uint64_t size = 0;           // bytes
  int64_t numel = 0;
  const uint8_t* data = nullptr;
};

class GgufFile {
 public:
  explicit GgufFile(const std::filesystem::path& file);

  const std::filesystem::path& path() const { return maps_.front()->path(); }
  uint32_t version() const { return version_; }

  // T: bool, int64_t (any integer type), double (float32 or float64), std::string, and std::vector of the last three.
  bool has(const std::string& key) const { return metadata_.count(key) != 0; }
  bool is_list(const std::string& key) const;  // of integers
  template <typename T>
  const T& at(const std::string& key) const;
  template <typename T>
  T get(const std::string& key, T otherwise) const {
    return has(key) ? at<T>(key) : std::move(otherwise);
  }
  std::vector<std::string> keys() const;

  const std::vector<std::string>& names() const { return names_; }  // in the order of the file
  bool has_tensor(const std::string& name) const { return tensors_.count(name) != 0; }
  const GgufTensor& info(const std::string& name) const;
  // A matrix, or one of each expert, of a block type that is a weight format, as the file has it, in memory of its own;
  // nullopt of any other.
  std::optional<Weight> encoded(const std::string& name) const;
  // In memory of its own, float32 arithmetic, one rounding to `dtype`.
  at::Tensor tensor(const std::string& name, at::ScalarType dtype = at::kFloat) const;

 private:
  struct OnePart {};
  GgufFile(const std::filesystem::path& file, OnePart);  // of a set, as if it were all
  void join_parts();                                     // gguf_parts.cpp

  using Value = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                             std::vector<std::string>>;
  class Reader;
  static Value read_value(Reader& in, const std::string& key, uint32_t type);
  static Value read_array(Reader& in, const std::string& key);
  static GgufTensor read_tensor(Reader& in, const std::string& name);
  void check_layout(uint64_t data_size, uint64_t alignment) const;

  std::vector<std::shared_ptr<const MappedFile>> maps_;  // one, or one a part
  uint32_t version_ = 0;
  std::map<std::string, Value> metadata_;
  std::map<std::string, GgufTensor> tensors_;
  std::vector<std::string> names_;
};

}  // namespace hotswap
