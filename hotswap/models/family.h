// A model family is a row: how its config is read, what a layer is made of, under which names its tensors stand in
// files. docs/adding_a_model.md tells how to add one; families/llama.cpp and families/mistral.cpp are the ones to copy.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hotswap/models/block.h"
#include "hotswap/models/config.h"
#include "hotswap/models/formats/gguf_model.h"
#include "hotswap/models/formats/tensor_rules.h"
#include "hotswap/models/fused_step.h"

namespace hotswap {

class Trunk;

inline TensorRules same_names(const ModelConfig&) { return {}; }
inline TensorRules gguf_decoder_names(const ModelConfig&) { return gguf_decoder_rules(); }

struct Family {
  const char* model_type;  // of config.json
  const char* class_name;  // of transformers: "LlamaForCausalLM"
  ModelConfig (*read_config)(const Json& config);
  std::unique_ptr<Block> (*make_block)(const ModelConfig& config, int64_t layer);
  // Of the trunk that has these blocks; may be null (models/fused_step.h).
  std::unique_ptr<FusedStep> (*make_fused_step)(const ModelConfig& config, Trunk& trunk) = nullptr;
  TensorRules (*tensor_rules)(const ModelConfig& config) = same_names;  // safetensors, read and written

  // Optimizer states are exchanged with torch by the order of parameters: is it another here, or are some joined?
  bool own_parameter_order = false;

  // Of modules, where transformers' own are called otherwise: rows of the kernel report have those names.
  TensorRules (*module_names)(const ModelConfig& config) = same_names;

  // general.architecture; null: llama.cpp has none of its own for it. Two families may share one, of which that with
  // experts reads expert_count.
  const char* gguf_architecture = nullptr;
  const char* gguf_architecture_of_experts = nullptr;  // another one, of its models with experts; null: the same
  TensorRules (*gguf_rules)(const ModelConfig& config) = gguf_decoder_names;
  bool gguf_head_dim_is_rotary = false;  // these six: see GgufArchitecture
  bool gguf_rotates_part = false;
  bool gguf_latent_heads = false;
  const char* gguf_norm_eps = "rms_norm_eps";
  std::vector<std::string> gguf_reads = {};
  decltype(GgufArchitecture::extend) gguf_extend = nullptr;
  // Of families that share an architecture and differ in more than experts: is it this one's file?
  bool (*gguf_is_own)(const GgufFile& file, const std::string& prefix) = nullptr;
};

// A family's file has one for its row, at namespace scope. Its constructor runs when the program starts.
class RegisteredFamily {
 public:
  explicit RegisteredFamily(Family family);
  RegisteredFamily(const RegisteredFamily&) = delete;
  RegisteredFamily& operator=(const RegisteredFamily&) = delete;

 private:
  Family family_;
};

// All, by model_type. Not before main().
const std::vector<const Family*>& families();
// By model_type, or a GGUF file's architecture. Error naming the known ones.
const Family& family_of(const Json& config);
const Family& family_of(const GgufFile& file);
Json config_of_gguf(const GgufFile& file);  // config.json, of the family that the file names

}  // namespace hotswap
