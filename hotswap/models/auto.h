// From a folder or a name on the Hub to a model, by the "model_type" of its config.json.
//
//   auto model = AutoModelForCausalLM::from_pretrained("models/SmolLM2-135M", {.use_kernels = true});
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "hotswap/models/causal_lm.h"
#include "hotswap/models/formats/bits_and_bytes_config.h"

namespace hotswap {

struct PretrainedOptions {
  bool use_kernels = false;                                  // swap layers for kernels, the bundled ones by default
  std::optional<KernelConfig> kernel_config = std::nullopt;  // given: use_kernels, with this mapping over the default
  bool strict = false;                                       // Error where a layer would stay stock against the mapping
  bool allow_all_kernels = false;             // kernels of the Hub run though their publisher is not a trusted one
  std::filesystem::path kernel_project = {};  // with hotswap.toml and kernels.lock; empty: HOTSWAP_PROJECT's
  std::string attn_implementation = {};       // sdpa, eager, a kernel (org/repo[@revision][:layer]); empty: the model's
  // The kernel that attends on a GPU where kernels are requested and neither attn_implementation nor the mapping names
  // one; of a model that has attention.
  std::string gpu_attention = {};
  // auto: what config.json says, else as stored, but of a quantised GGUF file on a GPU bfloat16; or float32, bfloat16,
  // float16.
  std::string dtype = "auto";
  std::string device_map = "cpu";                       // "auto": a GPU where there is one; "cuda", "cuda:1", ...
  std::optional<std::string> gguf_file = std::nullopt;  // of the folder: weights, config and tokenizer from it
  // Quantised weights of projections and embedding stay packed where their format can (docs/formats.md): less to read,
  // and nothing to train but adapters beside them.
  // Unset: where kernels are requested, on the CPU or with few_rows, and every layer that uses the weight has one.
  std::optional<bool> keep_formats = std::nullopt;
  bool few_rows = false;               // what it will generate is one sequence, or a few
  std::string revision = "main";       // branch, tag or commit of a model of the Hub
  std::filesystem::path adapter = {};  // a LoRA adapter of peft: its folder, or org/name (CausalLM::load_adapter)
  // Adapters that rows of a batch may have, instead: their indices are those of this list (CausalLM::add_row_adapter).
  std::vector<std::filesystem::path> row_adapters = {};
  BitsAndBytesConfig quantization_config = {};  // load_in_4bit: weights of projections become NF4, and stay so
  bool is_trainable = false;  // the adapter: train() trains it, and the model's own tensors do not learn
};

struct AutoModelForCausalLM {
  // In evaluation mode, as transformers. `name`: a folder, a .gguf file, or org/name on the Hub (model_folder.h).
  static std::shared_ptr<CausalLM> from_pretrained(const std::filesystem::path& name,
                                                   const PretrainedOptions& options = {});
  // A folder's config.json with fresh weights of a fixed seed, for measurements; dtype "auto": the config's or float32.
  static std::shared_ptr<CausalLM> from_random(const std::filesystem::path& folder, const PretrainedOptions& options);
  // The architecture alone: tensors are on the meta device until init_weights() or load_into().
  static std::shared_ptr<CausalLM> from_config(const Json& config);
};

}  // namespace hotswap
