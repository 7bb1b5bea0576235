// A causal language model of any family: tokens in, logits or a loss out. Families are rows (family.h), not classes.
//
//   auto out = (*model)({.input_ids = ids, .labels = ids});   out.loss.backward();
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "hotswap/base/json.h"
#include "hotswap/kernelize/kernelize.h"
#include "hotswap/models/generation_config.h"
#include "hotswap/models/lora_config.h"

namespace hotswap {

class Cache;
class FusedStep;
class Linear;
class StepMemory;
struct Family;
struct ModelConfig;
struct StepBatch;

struct ForwardArguments {
  Tensor input_ids;            // [batch, time] int64
  Tensor attention_mask = {};  // these six: see TrunkInput
  Tensor position_ids = {};
  Tensor cu_seqlens = {};
  int64_t max_seqlen = 0;
  Tensor seq_idx = {};
  Cache* cache = nullptr;                          // of make_cache(); inference only
  const StepBatch* step = nullptr;                 // instead of input_ids and the cache: see TrunkInput
  StepMemory* memory = nullptr;                    // of the step
  Tensor labels = {};                              // [batch, time], -100 where a token does not count; shifted inside
  std::optional<bool> need_logits = std::nullopt;  // unset: not when training with labels, so that the loss may fuse
  int64_t logits_to_keep = 0;                      // of the last so many positions only; 0: all
  std::optional<double> num_items_in_batch = std::nullopt;  // divides the loss instead of this batch's label count
  // Of each row, the number of its adapter (add_row_adapter), -1 for none; empty: no row has one. Inference only.
  std::vector<int64_t> row_adapters = {};
  // Of mixtures of experts: unset, as the config says. The loss then has the auxiliary one in it.
  std::optional<bool> output_router_logits = std::nullopt;
};

struct CausalLMOutput {
  Tensor loss;      // scalar float32; undefined without labels
  Tensor logits;    // [batch, time or logits_to_keep, vocab]; undefined where the loss was made without
  Tensor aux_loss;  // scalar float32: load_balancing_loss() of all layers (layers/router.h); undefined with a cache
  std::vector<Tensor> router_logits;  // [batch * time, experts], a mixture each; both as output_router_logits asks
};

class AppliedLora;
class LoraAdapter;
struct LoraUse;

// An adapter of rows, as add_row_adapter() took it.
struct RowAdapterInfo {
  std::string name;   // its folder's
  int64_t bytes = 0;  // of its tensors
};

class CausalLM : public Module {
 public:
  // Tensors are on the meta device until init_weights() or load_into().
  CausalLM(const Family& family, Json config);
  ~CausalLM() override;
  CausalLMOutput forward(const ForwardArguments& arguments);
  CausalLMOutput operator()(const ForwardArguments& arguments) { return forward(arguments); }

  // Defined in generation/generate.cpp, where the loop is: [batch, time] -> [batch, time + new]
  Tensor generate(const Tensor& input_ids, const GenerationConfig& config = {}, const Tensor& attention_mask = {});

  // Of logits: the index of each row's maximum, [batch, vocab] -> [batch] int64. By the head's kernel where it has one.
  Tensor largest(const Tensor& logits) const;
  // It has the roles of its kernel: argmax() and sample().
  const Linear& lm_head() const;

  // An empty cache (layers/cache.h) for `cache`, which grows beyond `reserve` tokens; layers with a sliding window keep
  // that much.
  std::unique_ptr<Cache> make_cache(int64_t reserve = 0) const;

  // Null: the family has none.
  const FusedStep* fused_step() const;

  // Which forward runs in each layer. Without a mode: the one of train() or eval(), which also bind anew from then on.
  const KernelReport& kernelize(Mode mode);
  const KernelReport& kernelize(Mode mode, KernelOptions options);
  const KernelReport& kernelize() { return kernelize(Mode::of_training(training())); }
  void unkernelize();
  const KernelReport& kernel_report() const { return kernels_.report(); }  // empty unless kernelized
  // Those of the last kernelize(); none: its layers are stock.
  std::optional<KernelOptions> kernel_options() const {
    return swaps_layers_ ? std::optional(kernel_options_) : std::nullopt;
  }

  const Family& family() const { return family_; }
  const ModelConfig& config() const;
  const Json& config_json() const { return config_json_; }
  const GenerationConfig& generation_config() const { return generation_config_; }
  void set_generation_config(GenerationConfig config) { generation_config_ = std::move(config); }

  at::Device device() const;
  at::ScalarType dtype() const;
  // Weights that keep their file's format (layers/weight.h): nothing trains them. unpack(): plain ones in dtype() from
  // now on; kernels are bound again.
  bool has_encoded_weights();
  void unpack();
  // Those of the modules of these names, before kernels are bound.
  void unpack_before_kernels(const std::set<std::string>& modules);
  // "sdpa", "eager", "" for that of the two which the model's layers ask for, or a kernel as
  // org/repo[@revision][:layer] (attn_implementation.h), which is bound as those of the mapping are: kernel_report()
  // says whether, unkernelize() puts the stock forward back. `options`, where nothing else is kernelized. Before there
  // are weights the name is only kept.
  void set_attn_implementation(const std::string& name, const KernelOptions& options = {});
  const std::string& attn_implementation() const { return attn_implementation_; }

  // A LoRA adapter as peft's save_pretrained wrote it: a folder, or org/name on the Hub. It computes beside the
  // weights, encoded ones too; kernels are bound again. Every key of its config and every tensor of its file is used,
  // or the Error names it. One at a time. PretrainedOptions::adapter loads it with the model, which adapters that
  // replace one of a tied embedding and head need. is_trainable: its tensors learn from now on, in float32 at least,
  // and the model's do not. Defined in models/lora.cpp.
  void load_adapter(const std::filesystem::path& name, const std::string& revision = "main", bool is_trainable = false);
  void load_adapter(const LoraAdapter& adapter, const LoraUse& use);  // models/lora.h
  // A new one, which learns; the model's own tensors do not, but for modules_to_save and bias. Drawn by `seed`.
  void add_adapter(const LoraConfig& config, uint64_t seed = 0);
  bool trains_adapter() const;
  // The tensors of an adapter that trains become those of a folder that save_pretrained() wrote.
  void restore_adapter(const std::filesystem::path& folder);
  void unload_adapter();  // exactly as before; of one that trained, the model's tensors learn again
  // The adapter becomes a part of the weights: save_pretrained() writes them. Encoded ones are unpacked first.
  void merge_and_unload();
  const std::string& adapter_name() const { return adapter_name_; }  // its folder's; empty: none is loaded
  // Adapters that rows of one batch may have, each its own or none: ForwardArguments::row_adapters has the indices that
  // this returns, from 0. Instead of load_adapter(). Kernels of whole layers run for rows without adapters. Error where
  // the adapter replaces tensors of the model (modules_to_save, biases): all rows have those in common.
  int64_t add_row_adapter(const LoraAdapter& adapter, const LoraUse& use);
  const std::vector<RowAdapterInfo>& row_adapters() const { return row_adapters_; }
  // What learns, once each: parameters that require gradients, then the tensors of an adapter that trains, below their
  // layers' names ("model.layers.0.self_attn.q_proj.lora_A.weight").
  void each_trained(const TensorVisitor& visit);

  // transformers' names: training forwards keep of layers 0, n, 2n, ... only their input, and backward runs their
  // forward again. The same bits. offload: inputs are kept in pinned host memory. Forwards with a cache and in
  // evaluation are as ever.
  void gradient_checkpointing_enable(int64_t every_n_layers = 1, bool offload = false);
  void gradient_checkpointing_disable();
  bool is_gradient_checkpointing() const;

  // Fresh weights as transformers draws them: what each part says of its tensors (Init), spread by initializer_range.
  void init_weights(uint64_t seed, at::ScalarType dtype = at::kFloat, at::Device device = at::kCPU);

  // A folder that transformers and from_pretrained load: config.json, weights, generation_config.json and, where the
  // model came from a folder with them, the tokenizer's files. With an adapter that trains, as transformers: the
  // adapter in peft's files, and no model.
  void save_pretrained(const std::filesystem::path& folder);
  void set_source(std::filesystem::path folder) { source_ = std::move(folder); }
  const std::filesystem::path& source() const { return source_; }

 protected:
  void on_mode_change() override;

 private:
  struct Parts;  // causal_lm_impl.h: the layers, and the config that they are made by
  const KernelReport& bind_kernels(Mode mode);
  void bind_again();
  void save_adapter(const std::filesystem::path& folder);
  void check_takes_adapter(const std::string& name) const;  // Error: it has one, or no weights
  void check_row_adapters(const ForwardArguments& arguments) const;
  void join_projections();
  std::vector<std::pair<std::string, Tensor>> plain_tensors();  // encoded ones as they are dequantised
  Tensor logits_of(const Tensor& hidden) const;                 // [..., hidden_size] -> [..., vocab]

  const Family& family_;
  Json config_json_;
  GenerationConfig generation_config_;
  std::filesystem::path source_;
  std::string attn_implementation_;
  KernelOptions kernel_options_;  // the caller's
  bool swaps_layers_ = false;     // kernelize() was called: not the attention alone
  std::unique_ptr<Parts> parts_;
  Kernelizer kernels_;
  std::string adapter_name_;
  std::shared_ptr<AppliedLora> lora_;  // null: no adapter is loaded
  std::vector<RowAdapterInfo> row_adapters_;
};

}  // namespace hotswap
