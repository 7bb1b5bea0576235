#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/tanh.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <set>
#include <utility>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/layers/experts.h"
#include "hotswap/layers/mlp.h"
#include "hotswap/layers/router.h"
#include "hotswap/layers/self_attention.h"
#include "hotswap/models/attn_implementation.h"
#include "hotswap/models/causal_lm_impl.h"
#include "hotswap/models/formats/weights.h"
#include "hotswap/models/tokenizer_files.h"
#include "hotswap/models/trunk_input.h"

namespace hotswap {
namespace {

// By their names in a kernel mapping.
std::set<std::string> layers_with_slots(Module& model) {
  std::set<std::string> layers;
  model.each_slot([&](const std::string&, SlotBase& slot) { layers.insert(slot.layer()); });
  return layers;
}

ModelConfig config_to_generate_with(const Family& family, const Json& json) {
  ModelConfig config = family.read_config(json);
  if (config.causal) return config;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "a model whose tokens see only those before them, to generate text with",
               .got = cat("use_bidirectional_attention = true in ", json.where()),
               .next = "read texts with it: hotswap embed, or SentenceEncoder and AutoModel in C++"});
}

// Not of a step with a cache: nobody trains there, and its mask counts tokens that no router saw in this call.
void add_aux_loss(const MixtureConfig& mixture, const ForwardArguments& a, CausalLMOutput& out) {
  if (out.router_logits.empty() || !mixture.router_aux_loss_coef || a.cache != nullptr || a.step != nullptr) return;
  out.aux_loss = load_balancing_loss(out.router_logits, mixture.num_experts_per_tok, a.attention_mask);
  if (out.loss.defined()) out.loss = at::add(out.loss, out.aux_loss, *mixture.router_aux_loss_coef);
}

}  // namespace

CausalLM::Parts::Parts(const Family& family, const Json& json)
    : config(config_to_generate_with(family, json)),
      trunk(config, family.make_block),
      fused_step(family.make_fused_step != nullptr ? family.make_fused_step(config, trunk) : nullptr),
      lm_head(config.tie_word_embeddings ? Linear(trunk.embed_tokens.weight, config.head_bias ? config.vocab_size : 0)
                                         : Linear(config.hidden_size, config.vocab_size, config.head_bias)) {}

CausalLM::CausalLM(const Family& family, Json config)
    : family_(family),
      config_json_(std::move(config)),
      parts_(std::make_unique<Parts>(family, config_json_)),
      kernels_(
          [names = family.module_names(parts_->config)](const std::string& name) { return name_before(names, name); }) {
  own("model", parts_->trunk);
  own("lm_head", parts_->lm_head);
  own("loss_function", parts_->loss);
  set_attn_implementation("");
}

CausalLM::~CausalLM() = default;

Tensor CausalLM::largest(const Tensor& logits) const { return parts_->lm_head.largest(logits); }
const Linear& CausalLM::lm_head() const { return parts_->lm_head; }
std::unique_ptr<Cache> CausalLM::make_cache(int64_t reserve) const { return parts_->trunk.make_cache(reserve); }
const FusedStep* CausalLM::fused_step() const { return parts_->fused_step.get(); }
const ModelConfig& CausalLM::config() const { return parts_->config; }
at::Device CausalLM::device() const { return parts_->trunk.embed_tokens.data().device(); }
at::ScalarType CausalLM::dtype() const { return parts_->trunk.dtype(); }

bool CausalLM::has_encoded_weights() {
  bool found = false;
  each_weight([&](const std::string&, const Weight& weight) { found = found || weight.encoded(); });
  return found;
}

void CausalLM::unpack() {
  const at::ScalarType dtype = this->dtype();
  each_module([&](const std::string&, Module& part) {
    if (auto* linear = dynamic_cast<Linear*>(&part)) linear->dequantise(dtype);
    if (auto* experts = dynamic_cast<Experts*>(&part)) experts->dequantise(dtype);
  });
  parts_->trunk.embed_tokens.dequantise(dtype);
  tensors_changed();
  bind_again();
}

void CausalLM::unpack_before_kernels(const std::set<std::string>& modules) {
  if (modules.empty()) return;
  const at::ScalarType dtype = this->dtype();
  each_module([&](const std::string& name, Module& part) {
    if (!modules.contains(name)) return;
    if (auto* linear = dynamic_cast<Linear*>(&part)) linear->dequantise(dtype);
    if (auto* experts = dynamic_cast<Experts*>(&part)) experts->dequantise(dtype);
  });
  tensors_changed();
}

// After what layers need of a kernel may have changed.
void CausalLM::bind_again() {
  parts_->loss.set_head_fuses(parts_->lm_head.fuses());
  if (swaps_layers_) bind_kernels(Mode::of_training(training()));
}

void CausalLM::on_mode_change() {
  if (training() && !trains_adapter() && has_encoded_weights()) {
    train(false);
    throw Error(
        {.kind = ErrorKind::kUnsupported,
         .wanted = "plain weights for training",
         .got = "quantised weights, which have no gradient",
         .next = "train an adapter beside them (add_adapter), load the model with keep_formats = false (--packed off), "
                 "or call unpack() before train()"});
  }
  if (training() && lora_ && !trains_adapter()) {
    train(false);
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = "a model without an adapter for training",
                 .got = cat("the LoRA adapter ", adapter_name_, ", which was loaded to compute and not to train"),
                 .next = "load it with is_trainable, or call merge_and_unload() or unload_adapter() before train()"});
  }
  kernels_.on_mode_change(*this);
}

TensorMap CausalLM::plain_tensors() {
  std::map<std::string, Tensor> plain;
  each_weight([&](const std::string& name, const Weight& weight) {
    if (weight.encoded()) plain[name] = weight.dequantised(dtype());
  });
  TensorMap tensors = named_tensors(*this);
  for (auto& [name, tensor] : tensors) {
    if (const auto found = plain.find(name); found != plain.end()) tensor = found->second;
  }
  return tensors;
}

const KernelReport& CausalLM::kernelize(Mode mode) {
  return swaps_layers_ ? kernels_.kernelize(*this, mode) : kernelize(mode, {});
}

const KernelReport& CausalLM::kernelize(Mode mode, KernelOptions options) {
  const KernelOptions before = std::exchange(kernel_options_, std::move(options));
  const bool swapped = std::exchange(swaps_layers_, true);
  try {
    return bind_kernels(mode);
  } catch (...) {  // nothing was bound
    kernel_options_ = before;
    swaps_layers_ = swapped;
    throw;
  }
}

// The caller's mapping with a row for the attention on each kind of device for which it has none.
const KernelReport& CausalLM::bind_kernels(Mode mode) {
  KernelOptions options = kernel_options_;
  auto& mapping = options.config.kernel_mapping;
  std::set<std::string> others = layers_with_slots(*this);
  const bool attends = others.erase(kAttentionLayer) > 0;
  if (!swaps_layers_) {
    options.config = {.inherit_mapping = false};
    for (const std::string& layer : others) mapping.emplace_back(layer, KernelChoice(""));
  }
  std::set<std::string> named;
  for (const auto& [layer, choice] : mapping) {
    if (layer == kAttentionLayer) named.merge(choice.kinds());
  }
  if (!named.empty() && is_attention_kernel(attn_implementation_)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "one kernel for the attention",
                 .got = cat("attn_implementation ", attn_implementation_, " and a row of the kernel mapping for ",
                            kAttentionLayer),
                 .next = "drop one of them"});
  }
  if (attends) {
    const KernelRef kernel = attention_kernel(attn_implementation_, options.allow_all_kernels, options.project);
    std::vector<std::pair<DeviceKey, ModeKernels>> elsewhere;
    for (const std::string& kind : device_kinds()) {
      if (!named.contains(kind)) elsewhere.emplace_back(kind, kernel);
    }
    if (!elsewhere.empty()) mapping.emplace_back(kAttentionLayer, KernelChoice(std::move(elsewhere)));
  }
  if (swaps_layers_ && mode.has(Mode::INFERENCE) && device().is_cuda()) join_projections();
  return kernels_.kernelize(*this, mode, std::move(options));
}

// A step of several rows on a GPU takes as long to launch a small product as to run it.
void CausalLM::join_projections() {
  each_module([](const std::string&, Module& part) {
    if (auto* attention = dynamic_cast<SelfAttention*>(&part)) join_weights(attention->joint_projections());
    if (auto* mlp = dynamic_cast<GatedMLP*>(&part)) join_weights({&mlp->gate_proj, &mlp->up_proj});
  });
}

void CausalLM::unkernelize() {
  kernels_.unkernelize(*this);
  swaps_layers_ = false;
  kernel_options_ = {};
}

void CausalLM::set_attn_implementation(const std::string& given, const KernelOptions& options) {
  const std::string stock = stock_attention_of(parts_->trunk);
  const std::string name = given.empty() ? stock : given;
  check_attn_implementation(name);
  const bool by_kernel = is_attention_kernel(name);
  if (by_kernel && !layers_with_slots(*this).contains(kAttentionLayer)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("a model with attention for the kernel ", name),
                 .got = cat("a model of type ", parts_->config.model_type, ", which has none"),
                 .next = "name no attn_implementation"});
  }
  const std::string before = std::exchange(attn_implementation_, name);
  if (!swaps_layers_) kernel_options_ = options;
  try {
    if (device().is_meta()) {
      // Nothing to bind to: kernelize() does it, or this again, when the weights are there.
    } else if (swaps_layers_ || by_kernel) {
      bind_kernels(Mode::of_training(training()));
    } else {
      kernels_.unkernelize(*this);
    }
  } catch (...) {
    attn_implementation_ = before;
    throw;
  }
  set_stock_attention(parts_->trunk, attention_kind(by_kernel ? stock : name));  // also beneath a kernel
}

void CausalLM::gradient_checkpointing_enable(int64_t every_n_layers, bool offload) {
  if (every_n_layers < 1) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "every_n_layers of at least 1",
                 .got = cat(every_n_layers),
                 .next = "1 checkpoints every layer"});
  }
  parts_->trunk.set_checkpointing(GradientCheckpointing{.every_n_layers = every_n_layers, .offload = offload});
}

void CausalLM::gradient_checkpointing_disable() { parts_->trunk.set_checkpointing(std::nullopt); }

bool CausalLM::is_gradient_checkpointing() const { return parts_->trunk.checkpointing().has_value(); }

CausalLMOutput CausalLM::forward(const ForwardArguments& a) {
  const c10::DeviceGuard current(device());  // packages of others may launch on whichever GPU is current
  check_row_adapters(a);
  const RowAdapters of_rows(a.row_adapters);
  CausalLMOutput out;
  const bool keeps_router_logits = a.output_router_logits.value_or(parts_->config.mixture.output_router_logits);
  // [batch, time, hidden_size]
  Tensor hidden = parts_->trunk.forward({.input_ids = a.input_ids,
                                         .attention_mask = a.attention_mask,
                                         .position_ids = a.position_ids,
                                         .cu_seqlens = a.cu_seqlens,
                                         .max_seqlen = a.max_seqlen,
                                         .seq_idx = a.seq_idx,
                                         .cache = a.cache,
                                         .step = a.step,
                                         .memory = a.memory,
                                         .router_logits = keeps_router_logits ? &out.router_logits : nullptr});
  if (a.step != nullptr && a.step->is_ragged) hidden = hidden.index_select(0, a.step->last_tokens);
  const bool has_labels = a.labels.defined();
  if (has_labels) {
    if (a.labels.sizes() != a.input_ids.sizes() || a.logits_to_keep != 0) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = cat("labels [", join(a.input_ids.sizes()), "] and logits of all positions"),
                   .got = cat("labels [", join(a.labels.sizes()), "], logits_to_keep ", a.logits_to_keep),
                   .next = "give each token its label, -100 where it does not count, and no logits_to_keep"});
    }
    check_tensor(a.labels, "labels", at::kLong, device());
  }
  const double z_loss = has_labels ? parts_->config.z_loss_coefficient : 0;
  const bool need_logits = a.need_logits.value_or(!(has_labels && training())) || z_loss > 0;
  const Weight& head = parts_->lm_head.weight;
  if (has_labels && !need_logits && parts_->loss.fuses() && parts_->lm_head.fuses()) {
    Tensor scaled = parts_->config.logits_scaling == 1 ? hidden : at::div(hidden, parts_->config.logits_scaling);
    if (parts_->config.logits_multiplier != 1) scaled = at::mul(scaled, parts_->config.logits_multiplier);
    out.loss = parts_->loss.from_hidden(scaled, head.plain() ? head.data : head.dequantised(hidden.scalar_type()),
                                        {.labels = a.labels,
                                         .items = a.num_items_in_batch,
                                         .softcap = parts_->config.final_logit_softcapping,
                                         .bias = parts_->lm_head.bias});
    add_aux_loss(parts_->config.mixture, a, out);
    return out;
  }
  const int64_t time = hidden.size(1), kept = a.logits_to_keep == 0 ? time : std::min(time, a.logits_to_keep);
  out.logits = logits_of(kept == time ? hidden : hidden.narrow(1, time - kept, kept));
  if (has_labels) out.loss = parts_->loss.from_logits(out.logits, {.labels = a.labels, .items = a.num_items_in_batch});
  if (z_loss > 0) {  // of all tokens, whether or not they have a label
    out.loss = at::add(out.loss, at::logsumexp(out.logits, {-1}).to(at::kFloat).pow(2).mean(), z_loss);
  }
  add_aux_loss(parts_->config.mixture, a, out);
  return out;
}

Tensor CausalLM::logits_of(const Tensor& hidden) const {
  Tensor logits = parts_->lm_head.forward(hidden);
  if (parts_->config.logits_scaling != 1) logits = at::div(logits, parts_->config.logits_scaling);
  if (parts_->config.logits_multiplier != 1) logits = at::mul(logits, parts_->config.logits_multiplier);
  const double cap = parts_->config.final_logit_softcapping;
  return cap == 0 ? logits : at::mul(at::tanh(at::div(logits, cap)), cap);
}

void CausalLM::init_weights(uint64_t seed, at::ScalarType dtype, at::Device device) {
  const at::NoGradGuard no_grad;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  each_init([&](Tensor& tensor, const Init& init) {
    const bool wants_grad = tensor.requires_grad();
    const bool is_float = tensor.is_floating_point();
    Tensor fresh = at::empty(tensor.sizes(), at::TensorOptions().dtype(is_float ? at::kFloat : tensor.scalar_type()));
    if (init.value) {
      fresh.fill_(*init.value);
    } else if (init.draw) {
      init.draw(fresh, generator);
    } else {
      fresh.normal_(0, parts_->config.initializer_range, generator);
    }
    tensor = fresh.to(device, is_float ? dtype : fresh.scalar_type());
    tensor.set_requires_grad(wants_grad);
  });
}

void CausalLM::save_pretrained(const std::filesystem::path& folder) {
  if (trains_adapter()) return save_adapter(folder);
  if (lora_) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a model without an adapter, whose weights are all that it computes with",
                 .got = cat("the LoRA adapter ", adapter_name_),
                 .next = "call merge_and_unload() to save both in one, or unload_adapter()"});
  }
  std::filesystem::create_directories(folder);
  nlohmann::ordered_json config = config_json_.raw();
  config.erase("torch_dtype");          // its name before transformers 5
  config.erase("quantization_config");  // weights were dequantised as they were read
  config["dtype"] = dtype_name(dtype());
  write_file(folder / "config.json", config.dump(2) + "\n");
  save_pretrained_weights(folder, in_checkpoint_terms(plain_tensors(), family_.tensor_rules(parts_->config)));

  nlohmann::ordered_json generation = nlohmann::ordered_json::object();
  if (parts_->config.bos_token_id) generation["bos_token_id"] = *parts_->config.bos_token_id;
  generation.update(to_json(generation_config_));
  write_file(folder / "generation_config.json", generation.dump(2) + "\n");

  if (!source_.empty()) copy_tokenizer_files(source_, folder);
}

}  // namespace hotswap
