// safetensors: 8 bytes header length, a JSON header, then the tensors' bytes without gaps. Reading maps the file and
// copies nothing; writing gives byte for byte what Python's safetensors.torch.save_file gives for the same tensors.
//
//   SafetensorsFile file("model.safetensors");
//   Tensor w = file.tensor("model.norm.weight");   // read-only memory: clone() before writing into it
//   save_safetensors("out.safetensors", {{"logits", logits}}, {{"format", "pt"}});
//
// The file is taken for hostile: every length, offset, shape and name is checked before it is used.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hotswap/base/file.h"

namespace hotswap {

// Named tensors in an order that means something: a model's own, or that of a file.
using TensorMap = std::vector<std::pair<std::string, at::Tensor>>;

struct SafetensorsEntry {
  std::string dtype;            // as the file names it: "BF16"
  std::vector<int64_t> shape;   // may be empty: a scalar
  uint64_t begin = 0, end = 0;  // bytes, from the start of the data
};

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& file);

  const std::filesystem::path& path() const { return map_->path(); }
  const std::vector<std::string>& names() const { return names_; }  // in the order of their bytes
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool has(const std::string& name) const { return entries_.count(name) != 0; }
  const SafetensorsEntry& entry(const std::string& name) const;
  // Shares the file's memory, which lives as long as the tensor. A misaligned tensor is a copy.
  at::Tensor tensor(const std::string& name) const;

 private:
  void parse_header(std::string_view header);
  void check_layout(uint64_t data_size);

  std::shared_ptr<const MappedFile> map_;
  const uint8_t* data_ = nullptr;
  std::vector<std::string> names_;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

// model.safetensors.index.json with its shards, which are all opened and compared with it at once.
class SafetensorsIndex {
 public:
  explicit SafetensorsIndex(const std::filesystem::path& index_file);

  // What the index lists, then what the shards hold beyond it.
  const std::vector<std::string>& names() const { return names_; }
  bool has(const std::string& name) const { return shard_of_.count(name) != 0; }
  const SafetensorsFile& shard(const std::string& name) const;
  at::Tensor tensor(const std::string& name) const { return shard(name).tensor(name); }
  const std::map<std::string, SafetensorsFile>& shards() const { return shards_; }  // by file name

 private:
  std::filesystem::path path_;
  std::map<std::string, SafetensorsFile> shards_;
  std::map<std::string, const SafetensorsFile*> shard_of_;
  std::vector<std::string> names_;
};

// Atomic. Tensors of any device and strides; each name once. With several metadata entries the order is by key
// (Python's is random).
void save_safetensors(const std::filesystem::path& file, const TensorMap& tensors,
                      const std::map<std::string, std::string>& metadata = {});

inline constexpr int64_t kMaxShardSize = 50'000'000'000;  // transformers' default, "50GB"

// A model's weights as transformers' save_pretrained lays them out: model.safetensors, or
// model-00001-of-0000N.safetensors and model.safetensors.index.json. A tensor that is the same memory as an earlier one
// (tied embeddings) is left out. Weight files of an earlier save that are not part of this one are removed.
void save_pretrained_weights(const std::filesystem::path& folder, const TensorMap& tensors,
                             int64_t max_shard_size = kMaxShardSize);

}  // namespace hotswap
