// A model as a GGUF file of llama.cpp: its config as metadata, its tokenizer and chat template, its tensors.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <map>

#include "hotswap/base/error.h"
#include "hotswap/chat/chat_template_sources.h"
#include "hotswap/layers/gguf_dequant.h"
#include "hotswap/layers/rope.h"
#include "hotswap/models/family.h"
#include "hotswap/models/formats/gguf_encode.h"
#include "hotswap/models/formats/gguf_write.h"
#include "hotswap/models/quantize/quantize_impl.h"
#include "hotswap/tokenizers/gguf_vocabulary_of.h"

namespace hotswap::quantizing {
namespace {

[[noreturn]] void no_gguf_of(std::string expected, std::string got) {
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = std::move(expected),
               .got = std::move(got),
               .next = "keep the model as safetensors (fp8_block, int4_g128), or take another model"});
}

// What llama.cpp calls a file of such a mix (LLAMA_FTYPE_MOSTLY_...).
int64_t file_type(const std::string& format) { return format == "q8_0" ? 7 : 15; }

void put_rope(GgufWriter& out, const std::string& prefix, const RopeParameters& rope) {
  out.number(prefix + "rope.dimension_count", rope.dim);
  out.real(prefix + "rope.freq_base", rope.theta);
  if (rope.type == "default" || rope.type == "llama3") return;  // llama3's factors are a tensor
  if (rope.type != "linear" && rope.type != "yarn")
    no_gguf_of("rotary embeddings of the type default, linear, yarn or llama3", cat("'", rope.type, "'"));
  out.text(prefix + "rope.scaling.type", rope.type);
  out.real(prefix + "rope.scaling.factor", rope.factor);
  if (rope.type == "linear") return;
  out.number(prefix + "rope.scaling.original_context_length", rope.original_max_position_embeddings);
  out.real(prefix + "rope.scaling.yarn_beta_fast", rope.beta_fast);
  out.real(prefix + "rope.scaling.yarn_beta_slow", rope.beta_slow);
}

void put_config(GgufWriter& out, const Source& source, const std::string& format) {
  const CausalLM& model = source.model;
  const ModelConfig& c = model.config();
  const std::string architecture = model.family().gguf_architecture, prefix = architecture + ".";
  out.text("general.architecture", architecture);
  out.text("general.type", "model");
  out.text("general.name", std::filesystem::weakly_canonical(model.source()).filename().string());
  out.number("general.file_type", file_type(format));
  out.number("general.quantization_version", 2);
  out.number(prefix + "block_count", c.num_hidden_layers);
  out.number(prefix + "context_length", c.rope_parameters.max_position_embeddings);
  out.number(prefix + "embedding_length", c.hidden_size);
  out.number(prefix + "feed_forward_length", c.intermediate_size);
  out.number(prefix + "attention.head_count", c.num_attention_heads);
  out.number(prefix + "attention.head_count_kv", c.num_key_value_heads);
  out.number(prefix + "attention.key_length", c.head_dim);
  out.number(prefix + "attention.value_length", c.head_dim);
  out.real(prefix + "attention.layer_norm_rms_epsilon", c.rms_norm_eps);
  out.number(prefix + "vocab_size", c.vocab_size);
  put_rope(out, prefix, c.rope_parameters);
}

void put_tokenizer(GgufWriter& out, const CausalLM& model) {
  const ModelConfig& c = model.config();
  const GgufVocabulary v =
      gguf_vocabulary_of(model.source(), model.family().gguf_architecture, static_cast<size_t>(c.vocab_size));
  const std::string prefix = "tokenizer.ggml.";
  out.text(prefix + "model", v.model);
  out.text(prefix + "pre", v.pre);
  out.texts(prefix + "tokens", v.tokens);
  out.integers(prefix + "token_type", v.token_types);
  if (!v.scores.empty()) out.reals(prefix + "scores", v.scores);
  if (!v.merges.empty()) out.texts(prefix + "merges", v.merges);
  // Without its own bos or eos, llama.cpp takes that of another tokenizer.
  const std::optional<int64_t> eos = v.eos                    ? v.eos
                                     : c.eos_token_id.empty() ? std::nullopt
                                                              : std::optional(c.eos_token_id.front());
  for (const auto& [key, id] : {std::pair("bos", v.bos ? v.bos : c.bos_token_id), std::pair("eos", eos),
                                std::pair("unknown", v.unk), std::pair("padding", v.pad ? v.pad : c.pad_token_id)}) {
    if (id) out.number(cat(prefix, key, "_token_id"), *id);
  }
  out.flag(prefix + "add_bos_token", v.add_bos.value_or(false));
  out.flag(prefix + "add_eos_token", v.add_eos.value_or(false));
  out.flag(prefix + "add_space_prefix", v.add_space_prefix.value_or(false));
  std::vector<std::string> others;
  for (const auto& [name, text] : chat_template_sources(model.source())) {
    out.text(name == "default" ? "tokenizer.chat_template" : "tokenizer.chat_template." + name, text);
    if (name != "default") others.push_back(name);
  }
  if (!others.empty()) out.texts("tokenizer.chat_templates", others);
}

// What Llama 3's scaling divides each frequency by.
at::Tensor rope_divisors(const RopeParameters& rope) {
  RopeParameters plain = rope;
  plain.type = "default";
  return (rope_frequencies(plain).inverse / rope_frequencies(rope).inverse).contiguous();
}

struct Entry {
  std::string name;  // in the file
  const GgufType* type;
  at::Tensor tensor;  // of the model
};

at::Tensor encoded(const Entry& entry) {
  const at::Tensor weights = finite_floats(entry.name, entry.tensor);
  const int64_t blocks = weights.numel() / entry.type->block;
  at::Tensor bytes =
      at::empty({blocks * static_cast<int64_t>(entry.type->block_size)}, at::TensorOptions().dtype(at::kByte));
  encode({.type = *entry.type,
          .from = weights.const_data_ptr<float>(),
          .to = bytes.mutable_data_ptr<uint8_t>(),
          .numel = weights.numel()});
  return bytes;
}

// All of the config that changes what a model computes and that its tensors' shapes do not show, by name. As float32
// where the file has that.
std::map<std::string, std::string> settings_of(const ModelConfig& c) {
  const auto single = [](double value) { return cat(static_cast<float>(value)); };
  const RopeParameters& rope = c.rope_parameters;
  std::map<std::string, std::string> all = {
      {"num_attention_heads", cat(c.num_attention_heads)},
      {"num_key_value_heads", cat(c.num_key_value_heads)},
      {"head_dim", cat(c.head_dim)},
      {"rms_norm_eps", single(c.rms_norm_eps)},
      {"norm_offset", single(c.norm_offset)},
      {"norm_casting", c.norm_casting},
      {"hidden_act", c.hidden_act},
      {"attention_scale", c.attention_scale ? single(*c.attention_scale) : ""},
      {"attn_logit_softcapping", single(c.attn_logit_softcapping)},
      {"final_logit_softcapping", single(c.final_logit_softcapping)},
      {"embedding_multiplier", single(c.embedding_multiplier)},
      {"residual_multiplier", single(c.residual_multiplier)},
      {"logits_scaling", single(c.logits_scaling)},
      {"attention_chunk_size", cat(c.attention_chunk_size)},
      {"rope_theta", single(rope.theta)},
      {"rope_type", rope.type},
      {"rotary dimensions", cat(rope.dim)},
      {"max_position_embeddings", cat(rope.max_position_embeddings)},
      {"rope's factor", single(rope.factor)},
      {"rope's attention_factor", rope.attention_factor ? single(*rope.attention_factor) : ""},
      {"rope's beta_fast and beta_slow", cat(single(rope.beta_fast), " ", single(rope.beta_slow))},
      {"rope's mscale and mscale_all_dim", cat(single(rope.mscale), " ", single(rope.mscale_all_dim))},
      {"rope's truncate", cat(rope.truncate)},
      {"rope's low_freq_factor", single(rope.low_freq_factor)},
      {"rope's high_freq_factor", single(rope.high_freq_factor)}};
  if (rope.type == "yarn" || rope.type == "llama3")
    all["original_max_position_embeddings"] = cat(rope.original_max_position_embeddings);
  std::vector<int64_t> windows, rotating;
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    windows.push_back(c.window_of(layer)), rotating.push_back(c.rotates(layer) ? 1 : 0);
  }
  all["sliding windows"] = join(windows);
  all["rotating layers"] = join(rotating);
  return all;
}

std::map<std::string, std::string> shapes_of(CausalLM& model) {
  std::map<std::string, std::string> shapes;
  model.each_tensor(
      [&](const std::string& name, Tensor& tensor) { shapes[name] = cat("[", join(tensor.sizes()), "]"); });
  if (model.config().tie_word_embeddings) shapes.erase("lm_head.weight");
  return shapes;
}

}  // namespace

Types write_gguf(const Source& source, const std::string& format, const std::filesystem::path& to) {
  CausalLM& model = source.model;
  const ModelConfig& c = model.config();
  GgufWriter out;
  put_config(out, source, format);
  put_tokenizer(out, model);
  const TensorRules rules = model.family().gguf_rules(c);
  const MixFacts facts{
      .layers = c.num_hidden_layers,
      .has_head = !c.tie_word_embeddings,
      .shares_values_of_8 = c.num_hidden_layers == 80 && c.num_attention_heads > c.num_key_value_heads};
  Types types;
  std::vector<std::function<Entry()>> entries;  // made when they are written: rows that move are a copy
  for (const auto& [model_name, tensor] : source.tensors) {
    const std::string name = name_before(rules, model_name);
    const std::string type_name = gguf_type_of(format, name, tensor.sizes().vec(), facts);
    const GgufType* type = find_gguf_type(type_name);
    out.tensor(name, *type, tensor.sizes().vec());
    types.push_back(type_name);
    entries.emplace_back([&rules, type, model_name = model_name, tensor = tensor] {
      const auto moved = in_checkpoint_terms({{model_name, tensor}}, rules);
      return Entry{moved.front().first, type, moved.front().second};
    });
  }
  if (c.rope_parameters.type == "llama3") {
    const GgufType* type = find_gguf_type(std::string("F32"));
    out.tensor(kRopeDivisors, *type, {c.rope_parameters.dim / 2});
    entries.emplace_back([&c, type] { return Entry{kRopeDivisors, type, rope_divisors(c.rope_parameters)}; });
  }
  out.write(to, [&](size_t i) {
    const Entry entry = entries[i]();
    source.advance(entry.name);
    return encoded(entry);
  });
  return types;
}

void check_description(const std::filesystem::path& file, CausalLM& model) {
  const GgufFile written(file);
  const Json config = config_of_gguf(written);
  CausalLM other(family_of(config), config);
  const auto compare = [&](const auto& expected, const auto& got, const char* what) {
    for (const auto& [name, value] : expected) {
      const auto found = got.find(name);
      const std::string read = found == got.end() ? "none" : found->second;
      if (read == value) continue;
      no_gguf_of(
          cat("a model that a GGUF file of the architecture ", model.family().gguf_architecture, " states whole"),
          cat(what, name, " ", value.empty() ? "none" : value, " in ", model.config_json().where(),
              ", which such a file reads as ", read.empty() ? "none" : read));
    }
  };
  compare(settings_of(model.config()), settings_of(other.config()), "");
  compare(shapes_of(model), shapes_of(other), "tensor ");
  compare(shapes_of(other), shapes_of(model), "tensor ");
}

}  // namespace hotswap::quantizing
