// Falcon Mamba: Mamba with norms, without weights, of dt, B and C.
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/families/mamba.h"
#include "hotswap/models/family.h"

namespace hotswap::falcon_mamba {
namespace {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_mamba1_config(json);
  c.mamba.norm_eps = positive_number(json, "mixer_rms_eps", 1e-6);
  return c;
}

}  // namespace

const RegisteredFamily kFalconMamba({.model_type = "falcon_mamba",
                                     .class_name = "FalconMambaForCausalLM",
                                     .read_config = read_config,
                                     .make_block = make_mamba1_block,
                                     .tensor_rules = backbone_names,
                                     .own_parameter_order = true,
                                     .module_names = backbone_names});

}  // namespace hotswap::falcon_mamba
