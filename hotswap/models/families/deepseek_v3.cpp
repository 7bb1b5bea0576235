// DeepSeek-V3: V2, with another order of the numbers that turn together. Layers of experts are not implemented.
#include "hotswap/models/families/deepseek_v2.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/family.h"

namespace hotswap {
namespace {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_deepseek_config(json, 3);
  c.rope_interleave = json.get<bool>("rope_interleave", true);
  c.mlp_bias = false;  // whatever a config says, as transformers has it
  return c;
}

// Here a layer behind first_k_dense_replace would get its experts.
std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  LatentAttentionOptions attention = latent_attention_options(c, layer);
  attention.rotary_order = c.rope_interleave ? RotaryOrder::kFromInterleaved : RotaryOrder::kHalves;
  return std::make_unique<LlamaBlock>(c, std::make_unique<LatentAttention>(attention),
                                      std::make_unique<GatedMLP>(mlp_options(c)));
}

}  // namespace

extern const Family kDeepseekV3;
const Family kDeepseekV3{.model_type = "deepseek_v3",
                         .class_name = "DeepseekV3ForCausalLM",
                         .read_config = read_config,
                         .make_block = make_block};

}  // namespace hotswap
