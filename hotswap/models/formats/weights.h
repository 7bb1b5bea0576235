// A model's weights on disk, of whatever format, and their way into a module.
//
//   const auto checkpoint = open_checkpoint(folder);              // or open_checkpoint(folder, "model.Q4_1.gguf")
//   load_into(model, *checkpoint, {.dtype = at::kBFloat16, .tied = {{"lm_head.weight", "model.embed_tokens.weight"}}});
//
// Names are the file's own; tensor_rules.h turns them into a model's. Nothing is read before it is asked for.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hotswap/layers/module.h"
#include "hotswap/models/formats/gguf.h"
#include "hotswap/models/formats/safetensors.h"

namespace hotswap {

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;
  virtual std::vector<std::string> names() const = 0;
  virtual bool has(const std::string& name) const = 0;
  virtual std::vector<int64_t> shape(const std::string& name) const = 0;
  virtual at::ScalarType dtype(const std::string& name) const = 0;  // as stored; float32 in a GGUF
  // On the CPU; the file's own read-only memory, or fresh.
  virtual at::Tensor tensor(const std::string& name, at::ScalarType dtype) const = 0;
  // As it is stored, where that is a format of layers/weight.h; nullopt: plain, or of another format.
  virtual std::optional<Weight> encoded(const std::string& /*name*/) const { return std::nullopt; }
  virtual bool is_file_memory(const std::string& name, at::ScalarType dtype) const = 0;
  virtual std::string where() const = 0;  // for messages
  virtual const GgufFile* gguf() const { return nullptr; }

  at::Tensor tensor(const std::string& name) const { return tensor(name, dtype(name)); }
  // The type of the first floating point tensor: what dtype = "auto" means where config.json does not say.
  at::ScalarType first_dtype() const;
};

// `folder` holds model.safetensors, or model.safetensors.index.json, or `gguf_file`. A path to a .gguf file works too.
std::unique_ptr<const Checkpoint> open_checkpoint(const std::filesystem::path& folder,
                                                  const std::optional<std::string>& gguf_file = std::nullopt);

struct LoadOptions {
  std::optional<at::ScalarType> dtype = std::nullopt;  // of floating point tensors; none: as each is stored
  at::Device device = at::kCPU;
  // {name, of what}: both are one tensor. The checkpoint may hold either or both; the second counts.
  std::vector<std::pair<std::string, std::string>> tied = {};
  // false: tensors may be the file's own memory, which is read-only. Writing into one (training) crashes the process.
  bool copy = true;
  // Weights of Linear and Embedding stay in their file's format, or in blocks of it, where there are such.
  bool keep_formats = false;
};

// Replaces every tensor of the module by the checkpoint's of the same name; requires_grad stays. All that is missing,
// unexpected or of another shape is listed in one Error, before anything is replaced.
void load_into(Module& module, const Checkpoint& checkpoint, const LoadOptions& options = {});

// The module's tensors under their names, for save_pretrained_weights.
TensorMap named_tensors(Module& module);

}  // namespace hotswap
