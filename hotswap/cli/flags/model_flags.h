// The flags that name a model and its kernels, shared by verbs, and what they stand for.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/chat/chat_template.h"
#include "hotswap/kernelize/kernelize.h"
#include "hotswap/models/causal_lm.h"
#include "hotswap/models/formats/bits_and_bytes_config.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {

struct ModelFlags {
  std::string model;                                      // a folder, a .gguf file, or org/name on the Hub
  std::string gguf_file;                                  // of the folder
  std::string revision = "main";                          // of the Hub
  std::string device = "cpu", dtype = "auto", attention;  // attention: empty, as the model asks for
  std::string packed = "auto";                            // or on, off
  std::string gpu_attention = {};                         // as PretrainedOptions has it
  bool few_rows = false;                                  // one sequence at a time, as PretrainedOptions has it
  bool random_weights = false;                            // the config alone is read: bench's
  std::string adapter;                                    // a LoRA adapter of peft; empty: none
  bool trains_adapter = false;                            // it learns
  std::vector<std::string> row_adapters = {};             // as PretrainedOptions has them: serve's
  BitsAndBytesConfig quantization;                        // load_in_4bit: its weights become NF4
};

struct KernelFlags {
  bool use_kernels = false, strict = false, local = false, allow_all = false;
  std::vector<std::string> kernels;  // LAYER=REF
  std::string config_file;           // JSON
  std::string project;               // folder of hotswap.toml and kernels.lock
  // Any of them asks for kernels.
  bool any() const { return use_kernels || !kernels.empty() || !config_file.empty(); }
};

void add_tokenizer_flags(CLI::App& verb, ModelFlags& flags);   // MODEL, --revision and --gguf-file alone
void add_base_model_flags(CLI::App& verb, ModelFlags& flags);  // without --adapter
void add_model_flags(CLI::App& verb, ModelFlags& flags);
void add_kernel_flags(CLI::App& verb, KernelFlags& flags);

// What --kernel and --kernel-config say; none where neither is given (the bundled kernels then).
std::optional<KernelConfig> kernel_config_of(const KernelFlags& flags);
// Error where --attn-implementation and the kernel mapping both name the attention.
void check_one_attention(const ModelFlags& model, const KernelFlags& kernels);
KernelOptions kernel_options_of(const KernelFlags& flags);
// A kernel config as JSON: {"kernel_mapping": {"RMSNorm": "org/repo:Layer", "SiLU": {"cuda": "...", "cpu": ""},
// "MLP": ["acme/mlp:SwiGLUMLP", {"version": 1, "trust_remote_code": true}]}, "use_local_kernel", "inherit_mapping"}
KernelConfig kernel_config_from(const Json& json);

// The same with --model as a path of this machine, fetched from the Hub if need be. A verb that reads more than the
// weights asks once; the functions below then look at the disk alone.
ModelFlags located(ModelFlags flags);
// Where layers stay stock that the mapping does not keep so, the report goes to stderr, unless the caller shows it.
enum class LeftStock : uint8_t { kReported, kShownByCaller };
std::shared_ptr<CausalLM> load_model(const ModelFlags& flags, const KernelFlags& kernels,
                                     LeftStock left = LeftStock::kReported);
// Another model on the same device, with the same dtype and kernels; null where `name` is empty.
std::shared_ptr<CausalLM> load_beside(const std::string& name, const ModelFlags& flags, const KernelFlags& kernels);
Tokenizer load_tokenizer(const ModelFlags& flags);
ChatTemplate load_chat_template(const ModelFlags& flags);
std::optional<ChatTemplate> find_chat_template(const ModelFlags& flags);  // none where the model has no template
// A file of messages: a JSON list, or an object with the keys "messages", "tools" and "documents". "-" is stdin.
ChatRequest read_chat(const std::string& file);
// The .gguf file that the flags name; none where the weights are safetensors.
std::optional<std::filesystem::path> gguf_path(const ModelFlags& flags);

using Rows = std::vector<std::vector<int64_t>>;
// A file with a JSON list of ids, or of lists of ids. Error unless every row holds ids of the vocabulary.
Rows read_rows(const std::string& file, int64_t vocab);
// A text file as one row of at most `limit` ids (0: all), with the special tokens that the tokenizer adds.
Rows read_text_row(const std::string& file, const Tokenizer& tokenizer, int64_t limit);
Tensor row_tensor(const std::vector<int64_t>& ids);  // [1, time]

// The "layers" of the report, for the key "kernels" of a verb's JSON.
nlohmann::ordered_json kernels_json(const KernelReport& report);

}  // namespace hotswap
