// Cohere 2, Command-R7B and Command A: Cohere with three sliding layers before each full one, which turns nothing.
#include "hotswap/models/families/cohere.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/family.h"

namespace hotswap::cohere2 {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_cohere_config(json, {});
  read_sliding_pattern(c, json, positive(json, "sliding_window_pattern", 4));
  for (const std::string& type : c.layer_types) c.no_rope_layers.push_back(type == "sliding_attention" ? 1 : 0);
  return c;
}

TensorRules gguf_rules(const ModelConfig&) { return with_gguf_decoder_rules({gguf_packed_attention()}); }

void gguf_extend(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  config["logit_scale"] = file.at<double>(prefix + "logit_scale");
  add_gguf_windows(file, prefix, 4, config);
}

const RegisteredFamily kFamily({.model_type = "cohere2",
                                .class_name = "Cohere2ForCausalLM",
                                .read_config = read_config,
                                .make_block = make_cohere_block,
                                .gguf_architecture = "cohere2",
                                .gguf_rules = gguf_rules,
                                .gguf_norm_eps = "layer_norm_eps",
                                .gguf_reads = {"logit_scale", "attention.sliding_window",
                                               "attention.sliding_window_pattern"},
                                .gguf_extend = gguf_extend});

}  // namespace hotswap::cohere2
