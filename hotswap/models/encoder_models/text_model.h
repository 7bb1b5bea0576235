// Models that read text and do not generate: hidden states of tokens for embeddings, classes of texts and of tokens,
// masked words. Names are transformers'; families are rows (text_family.h).
//
//   const auto model = AutoModelForSequenceClassification::from_pretrained("models/reranker", {.use_kernels = true});
//   const Tensor scores = (*model)({.input_ids = ids, .attention_mask = mask}).logits;
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/base/json.h"
#include "hotswap/kernelize/kernelize.h"
#include "hotswap/models/encoder_models/text_task.h"

namespace hotswap {

struct TextArguments {
  Tensor input_ids;                   // [batch, time] int64
  Tensor attention_mask = {};         // [batch, time]: 0 where a token is padding
  Tensor token_type_ids = {};         // [batch, time] int64; undefined: all 0
  Tensor position_ids = {};           // [1 or batch, time] int64; undefined: counted as the family counts
  std::vector<int64_t> lengths = {};  // of the sequences packed into a batch of one, in order, without padding
  // Of a text [batch] int64, or as floats [batch] (regression) or [batch, labels] (several labels a text); of tokens
  // [batch, time] int64, -100 where one does not count.
  Tensor labels = {};
  bool output_hidden_states = false;
};

struct TextOutput {
  Tensor loss;                        // scalar; undefined without labels
  Tensor logits;                      // of a text [sequences, labels], of tokens [batch, time, labels or vocab]
  Tensor last_hidden_state;           // [batch, time, hidden_size]
  Tensor pooler_output;               // [sequences, hidden_size]; undefined where the family or the task has no pooler
  std::vector<Tensor> hidden_states;  // where requested: embedded tokens, then each layer's
};

struct TextOptions {
  bool use_kernels = false;  // these seven: see PretrainedOptions
  std::optional<KernelConfig> kernel_config = std::nullopt;
  bool strict = false;
  bool allow_all_kernels = false;
  std::filesystem::path kernel_project = {};
  std::string attn_implementation = {};
  std::string dtype = "auto";
  std::string device_map = "cpu";
  std::string revision = "main";
  uint64_t seed = 0;                                 // draws what the checkpoint lacks of a task's head
  bool exact_head = false;                           // Error instead where it lacks any
  std::optional<int64_t> num_labels = std::nullopt;  // instead of config.json's
};

struct TextFamily;
struct TextParts;
class TextTrunk;

class TextModel : public Module {
 public:
  // Tensors are on the meta device until init_weights() or a checkpoint is loaded.
  TextModel(Json config, TextTask task);
  ~TextModel() override;
  TextOutput forward(const TextArguments& arguments);
  TextOutput operator()(const TextArguments& arguments) { return forward(arguments); }

  const KernelReport& kernelize(Mode mode, KernelOptions options = {});
  void unkernelize();
  const KernelReport& kernel_report() const { return kernels_.report(); }
  // "sdpa", "eager", "" for that of the two which the layers need, or a kernel, as CausalLM has it.
  void set_attn_implementation(const std::string& name, const KernelOptions& options = {});
  const std::string& attn_implementation() const { return attn_implementation_; }

  void init_weights(uint64_t seed, at::ScalarType dtype = at::kFloat, at::Device device = at::kCPU);
  // config.json, weights, and the tokenizer's files where the model came from a folder with them.
  void save_pretrained(const std::filesystem::path& folder);
  void set_source(std::filesystem::path folder) { source_ = std::move(folder); }

  std::string class_name() const;  // "BertForSequenceClassification"
  TextTask task() const { return task_; }
  const TextFamily& family() const { return *family_; }
  const Json& config_json() const { return config_json_; }
  int64_t hidden_size() const;
  int64_t num_labels() const;
  int64_t max_positions() const;  // tokens of a sequence that the model was made for; 0: not known
  bool has_token_types() const;
  at::Device device() const;
  at::ScalarType dtype() const;
  TextTrunk& trunk() const;

 protected:
  void on_mode_change() override;

 private:
  Tensor loss_of(const Tensor& logits, const Tensor& labels) const;
  const KernelReport& bind(Mode mode);
  TextTask task_;
  Json config_json_;
  std::unique_ptr<TextFamily> family_;
  std::unique_ptr<TextParts> parts_;
  std::unique_ptr<Module> loss_;
  std::string attn_implementation_;
  KernelOptions kernel_options_;  // the caller's
  bool swaps_layers_ = false;
  Kernelizer kernels_;
  std::filesystem::path source_;
};

// In evaluation mode. `name`: a folder, or org/name on the Hub.
template <TextTask task>
struct AutoTextModel {
  static std::shared_ptr<TextModel> from_pretrained(const std::filesystem::path& name, const TextOptions& options = {});
  static std::shared_ptr<TextModel> from_config(const Json& config) {
    return std::make_shared<TextModel>(config, task);
  }
};
std::shared_ptr<TextModel> text_model_from_pretrained(const std::filesystem::path& name, TextTask task,
                                                      const TextOptions& options);
template <TextTask task>
std::shared_ptr<TextModel> AutoTextModel<task>::from_pretrained(const std::filesystem::path& name,
                                                                const TextOptions& options) {
  return text_model_from_pretrained(name, task, options);
}
using AutoModel = AutoTextModel<TextTask::kBase>;
using AutoModelForSequenceClassification = AutoTextModel<TextTask::kSequenceClassification>;
using AutoModelForTokenClassification = AutoTextModel<TextTask::kTokenClassification>;
using AutoModelForMaskedLM = AutoTextModel<TextTask::kMaskedLM>;

}  // namespace hotswap
