// Models that llama.cpp has too, written here as its converter writes them: what is loaded computes the same. Other
// families: gguf_layouts_test.cpp.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "hotswap/models/auto.h"
#include "hotswap/models/formats/test_gguf.h"
#include "hotswap/models/formats/weights.h"

namespace hotswap {
namespace {

using test_support::Gguf;
using test_support::put_file;
using test_support::TempFolder;
using Object = nlohmann::ordered_json;

constexpr int64_t kHeads = 4, kKeyHeads = 2, kHidden = 24;

struct Written {
  const char *model_type, *architecture;
  Object differs;                                                 // of config.json, from base()
  std::function<void(Gguf& file, const std::string& arch)> keys;  // what the converter says of them
  std::map<std::string, std::string> norms = {};                  // of a layer, beside the two that all have
  bool interleaved = false;                                       // rows of queries and keys
  bool whole_norms = false;                                       // norms with the 1 that the model adds
};

void PrintTo(const Written& w, std::ostream* out) { *out << w.model_type; }

Object base() {
  return {{"vocab_size", 40},        {"hidden_size", kHidden},        {"num_hidden_layers", 3},
          {"intermediate_size", 32}, {"num_attention_heads", kHeads}, {"num_key_value_heads", kKeyHeads},
          {"rms_norm_eps", 1e-5},    {"max_position_embeddings", 64}, {"initializer_range", 0.4}};
}

const std::map<std::string, std::string> kGemma2Norms = {{"post_attention_layernorm", "post_attention_norm"},
                                                         {"pre_feedforward_layernorm", "ffn_norm"},
                                                         {"post_feedforward_layernorm", "post_ffw_norm"}};

std::vector<Written> all_written() {
  const auto none = [](Gguf&, const std::string&) {};
  const auto wide_heads = [](Gguf& file, const std::string& arch) {
    file.u32(arch + ".attention.key_length", 8).u32(arch + ".attention.value_length", 8);
  };
  std::map<std::string, std::string> gemma3_norms = kGemma2Norms;
  gemma3_norms.insert({{"self_attn.q_norm", "attn_q_norm"}, {"self_attn.k_norm", "attn_k_norm"}});
  std::map<std::string, std::string> olmo2_norms = gemma3_norms;
  olmo2_norms.erase("pre_feedforward_layernorm");
  return {
      {"llama",
       "llama",
       {{"rope_theta", 5e5}},
       [](Gguf& file, const std::string&) { file.f32("llama.rope.freq_base", 5e5); },
       {},
       true},
      {"qwen2", "qwen2", Object::object(), none},
      {"qwen3",
       "qwen3",
       {{"head_dim", 8}},
       wide_heads,
       {{"self_attn.q_norm", "attn_q_norm"}, {"self_attn.k_norm", "attn_k_norm"}}},
      {"gemma", "gemma", {{"head_dim", 8}}, wide_heads, {}, false, true},
      {"gemma2",
       "gemma2",
       {{"head_dim", 8},
        {"query_pre_attn_scalar", 8},
        {"sliding_window", 3},
        {"attn_logit_softcapping", 2.0},
        {"final_logit_softcapping", 4.0}},
       [=](Gguf& file, const std::string& arch) {
         wide_heads(file, arch);
         file.u32(arch + ".attention.sliding_window", 3).f32(arch + ".attn_logit_softcapping", 2);
         file.f32(arch + ".final_logit_softcapping", 4);
       },
       kGemma2Norms,
       false,
       true},
      {"gemma3_text",
       "gemma3",
       {{"head_dim", 8},
        {"query_pre_attn_scalar", 8},
        {"sliding_window", 3},
        {"num_hidden_layers", 7},
        {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}},
       [=](Gguf& file, const std::string& arch) {
         wide_heads(file, arch);
         file.u32(arch + ".attention.sliding_window", 3).f32(arch + ".rope.freq_base", 1e6);
         file.str(arch + ".rope.scaling.type", "linear").f32(arch + ".rope.scaling.factor", 8);
       },
       gemma3_norms,
       false,
       true},
      {"smollm3",
       "smollm3",
       {{"num_hidden_layers", 5}, {"rope_theta", 2e6}},
       [](Gguf& file, const std::string& arch) { file.f32(arch + ".rope.freq_base", 2e6); },
       {},
       true},
      {"olmo2", "olmo2", {{"tie_word_embeddings", true}}, none, olmo2_norms},
      {"granite",
       "granite",
       {{"embedding_multiplier", 3.0},
        {"attention_multiplier", 0.5},
        {"residual_multiplier", 0.25},
        {"logits_scaling", 2.0}},
       [](Gguf& file, const std::string& arch) {
         file.f32(arch + ".embedding_scale", 3).f32(arch + ".attention.scale", 0.5);
         file.f32(arch + ".residual_scale", 0.25).f32(arch + ".logit_scale", 2);
       },
       {},
       true},
  };
}

std::string theirs(const Written& w, const std::string& name) {
  static const std::map<std::string, std::string> outside = {{"model.embed_tokens.weight", "token_embd.weight"},
                                                             {"model.norm.weight", "output_norm.weight"},
                                                             {"lm_head.weight", "output.weight"}};
  if (const auto found = outside.find(name); found != outside.end()) return found->second;
  std::map<std::string, std::string> parts = {
      {"input_layernorm", "attn_norm"}, {"post_attention_layernorm", "ffn_norm"},
      {"self_attn.q_proj", "attn_q"},   {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},   {"self_attn.o_proj", "attn_output"},
      {"mlp.gate_proj", "ffn_gate"},    {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"}};
  for (const auto& [ours, other] : w.norms) parts[ours] = other;
  const size_t number = std::string("model.layers.").size(), dot = name.find('.', number), end = name.rfind('.');
  return cat("blk.", name.substr(number, dot - number), ".", parts.at(name.substr(dot + 1, end - dot - 1)),
             name.substr(end));
}

// llama.cpp's order of a rotated head: what turns together side by side.
Tensor side_by_side(const Tensor& rows, int64_t heads) {
  return rows.reshape({heads, 2, rows.size(0) / heads / 2, -1}).transpose(1, 2).reshape(rows.sizes());
}

std::string tensor_bytes(const Tensor& tensor) {
  const Tensor plain = tensor.contiguous();
  return {reinterpret_cast<const char*>(plain.const_data_ptr<float>()), static_cast<size_t>(plain.numel()) * 4};
}

Gguf file_of(const Written& w, CausalLM& model) {
  const std::string arch = w.architecture;
  const ModelConfig& c = model.config();
  const auto size = [](int64_t value) { return static_cast<uint32_t>(value); };
  Gguf file = Gguf()
                  .str("general.architecture", arch)
                  .u32(arch + ".block_count", size(c.num_hidden_layers))
                  .u32(arch + ".context_length", size(c.rope_parameters.max_position_embeddings))
                  .u32(arch + ".embedding_length", size(c.hidden_size))
                  .u32(arch + ".feed_forward_length", size(c.intermediate_size))
                  .u32(arch + ".attention.head_count", size(c.num_attention_heads))
                  .u32(arch + ".attention.head_count_kv", size(c.num_key_value_heads))
                  .u32(arch + ".vocab_size", size(c.vocab_size))
                  .f32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
  w.keys(file, arch);
  model.each_tensor([&](const std::string& name, Tensor& tensor) {
    Tensor stored = tensor;
    if (w.whole_norms && name.find("norm") != std::string::npos) stored = stored + 1;
    if (w.interleaved && name.find("q_proj") != std::string::npos) stored = side_by_side(stored, kHeads);
    if (w.interleaved && name.find("k_proj") != std::string::npos) stored = side_by_side(stored, kKeyHeads);
    std::vector<uint64_t> extents;
    for (int64_t d = stored.dim(); d-- > 0;) extents.push_back(static_cast<uint64_t>(stored.size(d)));
    file.tensor(theirs(w, name), extents, 0, tensor_bytes(stored));
  });
  return file;
}

class GgufOfAFamily : public testing::TestWithParam<Written> {};

TEST_P(GgufOfAFamily, ComputesTheSame) {
  const Written& w = GetParam();
  Object config = base();
  config["model_type"] = w.model_type;
  config.update(w.differs);
  const auto model = AutoModelForCausalLM::from_config(Json::parse(config.dump(), "config.json"));
  model->init_weights(3);
  model->eval();
  const at::NoGradGuard no_grad;
  model->each_tensor([](const std::string& name, Tensor& tensor) {  // fresh norms would hide a wrong one
    if (tensor.dim() == 1) tensor.add_(at::randint(0, 5, tensor.sizes(), at::kFloat), 0.1);
  });
  const TempFolder folder;
  put_file(folder / "m.gguf", file_of(w, *model).bytes());
  const auto loaded = AutoModelForCausalLM::from_pretrained(folder / "m.gguf");
  EXPECT_EQ(loaded->config().model_type, w.model_type);
  const Tensor ids = at::randint(0, 40, {2, 9}, at::kLong);
  const Tensor want = (*model)({.input_ids = ids}).logits, got = (*loaded)({.input_ids = ids}).logits;
  // Norms come back as (weight + 1) - 1: one rounding each.
  EXPECT_LE((got - want).abs().max().item<double>(), 1e-5 * want.abs().max().item<double>());
}

INSTANTIATE_TEST_SUITE_P(Models, GgufOfAFamily, testing::ValuesIn(all_written()),
                         [](const auto& info) { return info.param.model_type; });

}  // namespace
}  // namespace hotswap
