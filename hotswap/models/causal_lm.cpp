#include "hotswap/models/causal_lm.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/models/formats/weights.h"

namespace hotswap {
namespace {

constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",     "chat_template.jinja",   "tokenizer.model"};

}  // namespace

void CausalLM::add_head() {
  lm_head_ = config_.tied ? std::make_unique<Linear>(embedding())
                          : std::make_unique<Linear>(config_.dim, config_.vocab, /*with_bias=*/false);
  own("lm_head", *lm_head_);
  own("loss_function", loss_);
}

CausalLMOutput CausalLM::forward(const ForwardArguments& a) {
  const Tensor hidden = hidden_states({.ids = a.input_ids,
                                       .attention_mask = a.attention_mask,
                                       .position_ids = a.position_ids,
                                       .cache = a.cache});  // [batch, time, dim]
  const bool has_labels = a.labels.defined();
  if (has_labels && (a.labels.sizes() != a.input_ids.sizes() || a.logits_to_keep != 0)) {
    throw Error({.wanted = cat("labels [", join(a.input_ids.sizes()), "] and logits of all positions"),
                 .got = cat("labels [", join(a.labels.sizes()), "], logits_to_keep ", a.logits_to_keep),
                 .next = ""});
  }
  const bool need_logits = a.need_logits.value_or(!(has_labels && training()));
  CausalLMOutput out;
  if (has_labels && !need_logits && loss_.fuses()) {
    out.loss = loss_.from_hidden(hidden, lm_head_->weight, {.labels = a.labels, .items = a.num_items_in_batch});
    return out;
  }
  const int64_t time = hidden.size(1), kept = a.logits_to_keep == 0 ? time : std::min(time, a.logits_to_keep);
  out.logits = lm_head_->forward(kept == time ? hidden : hidden.narrow(1, time - kept, kept));
  if (has_labels) out.loss = loss_.from_logits(out.logits, {.labels = a.labels, .items = a.num_items_in_batch});
  return out;
}

void CausalLM::init_weights(uint64_t seed, at::ScalarType dtype, at::Device device) {
  const at::NoGradGuard no_grad;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  each_tensor([&](const std::string& name, Tensor& tensor) {
    const bool wants_grad = tensor.requires_grad();
    Tensor fresh = at::empty(tensor.sizes(), at::TensorOptions().dtype(at::kFloat));
    const bool is_bias = name.size() > 5 && name.compare(name.size() - 5, 5, ".bias") == 0;
    if (is_bias) {
      fresh.zero_();
    } else if (tensor.dim() == 1) {
      fresh.fill_(1);  // the weight of a norm
    } else {
      fresh.normal_(0, config_.initializer_range, generator);
    }
    tensor = fresh.to(device, dtype);
    tensor.set_requires_grad(wants_grad);
  });
}

void CausalLM::save_pretrained(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  nlohmann::ordered_json config = config_json_.raw();
  config.erase("torch_dtype");  // its name before transformers 5
  config["dtype"] = dtype_name(dtype());
  write_file(folder / "config.json", config.dump(2) + "\n");
  save_pretrained_weights(folder, named_tensors(*this));

  nlohmann::ordered_json generation = nlohmann::ordered_json::object();
  const GenerationConfig& g = generation_config_;
  const auto put = [&](const char* key, const auto& value) {
    if (value) generation[key] = *value;
  };
  put("bos_token_id", config_.bos);
  put("eos_token_id", g.eos_token_id);
  put("pad_token_id", g.pad_token_id);
  put("do_sample", g.do_sample);
  put("temperature", g.temperature);
  put("top_k", g.top_k);
  put("top_p", g.top_p);
  put("repetition_penalty", g.repetition_penalty);
  write_file(folder / "generation_config.json", generation.dump(2) + "\n");

  if (source_.empty() || !std::filesystem::is_directory(source_)) return;
  for (const char* name : kTokenizerFiles) {
    if (std::filesystem::is_regular_file(source_ / name)) write_file(folder / name, read_file(source_ / name));
  }
}

}  // namespace hotswap
