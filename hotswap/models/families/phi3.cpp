// Phi-3 and Phi-4: Llama's block whose checkpoints pack queries, keys and values, and gate and up; a part of each head
// turns, and longrope stretches it.
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/family.h"

namespace hotswap::phi3 {
namespace {

ModelConfig read_config(const Json& json) {
  ModelConfig c =
      read_decoder_config(json, {.rope = {.may_be_partial = true, .original_max_position_embeddings = 4096}});
  for (const char* key : {"resid_pdrop", "embd_pdrop"}) refuse_if(json.get<double>(key, 0) != 0, json, key);
  const std::string& rope = c.rope_parameters.type;
  refuse_if(rope != "default" && rope != "longrope", json, cat("a rope type of ", rope));  // as transformers
  if (json.has("sliding_window")) c.sliding_window = read_sliding_window(json, 0);
  if (c.sliding_window > 0) c.layer_types.assign(c.num_hidden_layers, "sliding_attention");
  check_layer_types(c, json);
  c.attention_bias = c.mlp_bias = false;  // whatever a config says, as transformers has it
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  return std::make_unique<LlamaBlock>(c, attention_options(c, layer));
}

TensorRules tensor_rules(const ModelConfig&) {
  const std::string layer = "model.layers.*.", attention = layer + "self_attn.", mlp = layer + "mlp.";
  return {TensorRule::split(attention + "qkv_proj", {attention + "q_proj", attention + "k_proj", attention + "v_proj"}),
          TensorRule::split(mlp + "gate_up_proj", {mlp + "gate_proj", mlp + "up_proj"})};
}

TensorRules module_names(const ModelConfig&) {
  return {TensorRule::rename("model.layers.*.mlp.activation_fn", "model.layers.*.mlp.act_fn")};
}

TensorRules gguf_rules(const ModelConfig&) {
  return with_gguf_decoder_rules({gguf_packed_attention(), gguf_packed_gate(),
                                  TensorRule::leave_out("rope_factors_long"),
                                  TensorRule::leave_out("rope_factors_short")});
}

std::vector<double> factors(const GgufFile& file, const char* name) {
  const at::Tensor values = file.tensor(name).flatten();
  const float* first = values.const_data_ptr<float>();
  return {first, first + values.numel()};
}

void gguf_extend(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  const auto window = file.get<int64_t>(prefix + "attention.sliding_window", 0);
  config["sliding_window"] = window == 0 ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(window);
  const std::string original = prefix + "rope.scaling.original_context_length";
  if (file.has(original)) config["original_max_position_embeddings"] = file.at<int64_t>(original);
  if (!file.has_tensor("rope_factors_long.weight")) return;
  config["rope_scaling"] = {{"rope_type", "longrope"},
                            {"attention_factor", file.at<double>(prefix + "rope.scaling.attn_factor")},
                            {"long_factor", factors(file, "rope_factors_long.weight")},
                            {"short_factor", factors(file, "rope_factors_short.weight")}};
}

}  // namespace

const RegisteredFamily kPhi3({.model_type = "phi3",
                              .class_name = "Phi3ForCausalLM",
                              .read_config = read_config,
                              .make_block = make_block,
                              .make_fused_step = make_fused_decoder_step,
                              .tensor_rules = tensor_rules,
                              .own_parameter_order = true,
                              .module_names = module_names,
                              .gguf_architecture = "phi3",
                              .gguf_rules = gguf_rules,
                              .gguf_rotates_part = true,
                              .gguf_reads = {"attention.sliding_window", "rope.scaling.attn_factor"},
                              .gguf_extend = gguf_extend});

}  // namespace hotswap::phi3
