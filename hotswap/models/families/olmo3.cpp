// OLMo 3: OLMo 2 with three sliding layers before each full one, and a rotary embedding for each of the two.
#include "hotswap/models/families/olmo2.h"
#include "hotswap/models/family.h"

namespace hotswap::olmo3 {
namespace {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_olmo2_config(json, {.rope = {.theta = 5e5, .sliding_theta = 5e5}});
  read_sliding_pattern(c, json, 4);
  return c;
}

}  // namespace

const RegisteredFamily kOlmo3({.model_type = "olmo3",
                               .class_name = "Olmo3ForCausalLM",
                               .read_config = read_config,
                               .make_block = make_olmo2_block});

}  // namespace hotswap::olmo3
