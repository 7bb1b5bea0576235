// Falcon Mamba: Mamba with norms, without weights, of dt, B and C.
#include "hotswap/layers/mamba_mixer.h"
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/families/mamba.h"
#include "hotswap/models/family.h"

namespace hotswap {
namespace {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_mamba_config(json, /*tie_word_embeddings=*/true);
  c.mamba.state = positive(json, "state_size", 16);
  read_mamba_sizes(c, json, "expand", "time_step_rank");
  c.mamba.channels = positive(json, "intermediate_size", c.mamba.channels);  // it wins, as transformers has it
  c.mamba.norm_eps = positive_number(json, "mixer_rms_eps", 1e-6);
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  return std::make_unique<MambaBlock>(c, std::make_unique<MambaMixer>(mamba_options(c, layer)));
}

}  // namespace

extern const Family kFalconMamba;
const Family kFalconMamba{.model_type = "falcon_mamba",
                          .class_name = "FalconMambaForCausalLM",
                          .read_config = read_config,
                          .make_block = make_block,
                          .tensor_rules = backbone_names};

}  // namespace hotswap
