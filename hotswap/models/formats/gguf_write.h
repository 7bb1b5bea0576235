// Writes a GGUF file, version 3: metadata, a table of tensors, then their bytes, which are made one tensor at a time.
//
//   GgufWriter out;
//   out.text("general.architecture", "llama");
//   out.number("llama.block_count", 30);
//   out.tensor("blk.0.attn_q.weight", *find_gguf_type("Q4_K"), {576, 576});
//   out.write("model.gguf", [&](size_t i) { return bytes_of(i); });   // in the order in which they were declared
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "hotswap/layers/gguf_blocks.h"

namespace hotswap {

class GgufWriter {
 public:
  // Each key once. The types are those that llama.cpp reads such keys as: uint32, float32, int32 in lists.
  void text(const std::string& key, const std::string& value);
  void number(const std::string& key, int64_t value);
  void real(const std::string& key, double value);
  void flag(const std::string& key, bool value);
  void texts(const std::string& key, const std::vector<std::string>& values);
  void integers(const std::string& key, const std::vector<int32_t>& values);
  void reals(const std::string& key, const std::vector<float>& values);

  // `shape` as torch has it; its last dimension in whole blocks of the type.
  void tensor(const std::string& name, const GgufType& type, const std::vector<int64_t>& shape);
  size_t tensors() const { return sizes_.size(); }

  // Nothing remains of the file where an error ends it. bytes(i): uint8 of tensor i, as large as its type and shape
  // say.
  void write(const std::filesystem::path& file, const std::function<at::Tensor(size_t)>& bytes) const;

 private:
  void key(const std::string& name, uint32_t type, const std::string& value);

  std::string keys_, table_;
  std::vector<std::string> key_names_, names_;
  std::vector<uint64_t> sizes_;
  uint64_t end_ = 0;  // of the data so far, padded
};

}  // namespace hotswap
