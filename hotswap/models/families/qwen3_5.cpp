// Qwen 3.5's text models: Qwen3-Next's layers, whose recurrences have a projection for each of their parts; an MLP
// after each mixer, or experts in all layers. Text has one position for a token, so mrope_section makes no difference.
#include "hotswap/models/families/qwen3_next.h"
#include "hotswap/models/family.h"

namespace hotswap::qwen3_5 {

ModelConfig read_config(const Json& json) { return read_gated_delta_config(json, /*packed=*/false); }

ModelConfig read_config_of_experts(const Json& json) {
  ModelConfig c = read_gated_delta_config(json, /*packed=*/false, "moe_intermediate_size");
  read_gated_delta_mixtures(c, json);
  return c;
}

const RegisteredFamily kFamily({.model_type = "qwen3_5_text",
                                .class_name = "Qwen3_5ForCausalLM",
                                .read_config = read_config,
                                .make_block = make_gated_delta_block,
                                .tensor_rules = gated_delta_rules});

const RegisteredFamily kOfExperts({.model_type = "qwen3_5_moe_text",
                                   .class_name = "Qwen3_5MoeForCausalLM",
                                   .read_config = read_config_of_experts,
                                   .make_block = make_gated_delta_block,
                                   .tensor_rules = gated_delta_rules});

}  // namespace hotswap::qwen3_5
