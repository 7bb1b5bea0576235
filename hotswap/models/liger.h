// Liger's calls for models in C++: which layers run by kernels, in the words of LinkedIn's Liger 0.8.5.
//
//   apply_liger_kernel_to_llama(*model);                       // Liger's defaults for the family
//   apply_liger_kernel(*model, {{"rope", false}});             // by model_type, as Trainer's use_liger_kernel=True
//   std::cout << model->kernel_report();                       // what runs where, and why not
//   model->unkernelize();                                      // exactly as before
//
// The options of each family, their names and defaults, are those of Liger's function; an option that a family has not
// is an Error that names the nearest. Layers that Liger has no kernel for stay stock: kernelize() binds those too.
// Liger's functions without a model change classes for all models that are made later; here a model is always named.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hotswap/models/auto.h"
#include "hotswap/models/causal_lm.h"

namespace hotswap {

// What TrainingArguments calls liger_kernel_config: options by name. What is left out has the family's default.
using LigerKernelConfig = std::map<std::string, bool>;

struct LigerFamily {
  std::string model_type;
  std::vector<std::pair<std::string, bool>> options;  // with their defaults, in the order of Liger's arguments
  std::vector<std::string> lacks = {};                // options that no kernel here serves: they may only be false
};

// Every family of Liger's, also those that hotswap has no C++ model of.
const std::vector<LigerFamily>& liger_families();
// The family of a model_type, or of the model of text and images whose text half it is ("llama4_text"). Error naming
// the families where Liger has none for it.
const LigerFamily& liger_family(const std::string& model_type);

// The layers, by their names in a kernel mapping, that run by kernels. Error for an option that the family has not.
std::set<std::string> liger_layers(const LigerFamily& family, const LigerKernelConfig& options = {});

// The same for the layers that a model has: what KernelOptions::config takes.
KernelConfig liger_kernel_config(CausalLM& model, const LigerKernelConfig& options = {});

// Binds the model's layers, for training or for inference as its mode is; train() and eval() bind again.
const KernelReport& apply_liger_kernel(CausalLM& model, const LigerKernelConfig& options = {});

// apply_liger_kernel_to_llama and so on: the same for one family. Error for a model of another.
struct ApplyLigerKernelTo {
  const char* family;
  const KernelReport& operator()(CausalLM& model, const LigerKernelConfig& options = {}) const;
};

// Liger's class: the model is swapped as it is loaded. use_kernels of PretrainedOptions stays off.
struct AutoLigerKernelForCausalLM {
  static std::shared_ptr<CausalLM> from_pretrained(const std::filesystem::path& name,
                                                   const PretrainedOptions& options = {},
                                                   const LigerKernelConfig& liger = {});
};

inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_deepseek_v2{"deepseek_v2"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_deepseek_v3{"deepseek_v3"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_deepseek_v4{"deepseek_v4"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_exaone4{"exaone4"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_falcon_h1{"falcon_h1"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_gemma{"gemma"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_gemma2{"gemma2"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_gemma3{"gemma3"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_gemma3_text{"gemma3_text"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_gemma4{"gemma4"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_gemma4_text{"gemma4_text"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_glm4{"glm4"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_glm4v{"glm4v"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_glm4v_moe{"glm4v_moe"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_gpt_oss{"gpt_oss"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_granite{"granite"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_hunyuan_v1_dense{"hunyuan_v1_dense"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_hunyuan_v1_moe{"hunyuan_v1_moe"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_internvl{"internvl"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_llama{"llama"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_llama4{"llama4"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_llava{"llava"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_ministral{"ministral"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_mistral{"mistral"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_mixtral{"mixtral"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_mllama{"mllama"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_muse_glimmer{"muse_glimmer"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_nemotron{"nemotron"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_olmo2{"olmo2"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_olmo3{"olmo3"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_paligemma{"paligemma"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_phi3{"phi3"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_pixtral{"pixtral"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_qwen2{"qwen2"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_qwen2_5_vl{"qwen2_5_vl"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_qwen2_vl{"qwen2_vl"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_qwen3{"qwen3"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_qwen3_5{"qwen3_5"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_qwen3_5_moe{"qwen3_5_moe"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_qwen3_moe{"qwen3_moe"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_qwen3_next{"qwen3_next"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_qwen3_vl{"qwen3_vl"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_qwen3_vl_moe{"qwen3_vl_moe"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_smollm3{"smollm3"};
inline constexpr ApplyLigerKernelTo apply_liger_kernel_to_smolvlm{"smolvlm"};

}  // namespace hotswap
