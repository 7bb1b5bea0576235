// SmolLM3: Llama's block, and no rotary embedding on some layers; those may slide.
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/family.h"

namespace hotswap::smollm3 {
namespace {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.tie_word_embeddings = true, .rope = {.theta = 2e6}});
  const int64_t interval = positive(json, "no_rope_layer_interval", 4);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) c.no_rope_layers.push_back((i + 1) % interval != 0 ? 1 : 0);
  if (json.has("no_rope_layers")) c.no_rope_layers = json.at<std::vector<int64_t>>("no_rope_layers");
  if (static_cast<int64_t>(c.no_rope_layers.size()) < c.num_hidden_layers) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat(c.num_hidden_layers, " no_rope_layers, one a layer"),
                 .got = cat(c.no_rope_layers.size(), " in ", json.where()),
                 .next = "list one entry a layer in no_rope_layers"});
  }
  const bool slides = json.get<bool>("use_sliding_window", false);
  if (slides && json.has("sliding_window")) c.sliding_window = read_sliding_window(json, 0);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    if (c.sliding_window > 0 && !c.rotates(i)) c.layer_types[i] = "sliding_attention";
  }
  if (json.has("layer_types")) c.layer_types = read_layer_types(c, json);
  return c;
}

}  // namespace

const RegisteredFamily kSmolLM3({.model_type = "smollm3",
                                 .class_name = "SmolLM3ForCausalLM",
                                 .read_config = read_config,
                                 .make_block = make_llama_block,
                                 .make_fused_step = make_fused_decoder_step,
                                 .gguf_architecture = "smollm3",
                                 .gguf_rules = gguf_interleaved_rules,
                                 .gguf_head_dim_is_rotary = true});

}  // namespace hotswap::smollm3
