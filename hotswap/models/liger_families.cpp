// The table of Liger's families: the options of each apply_liger_kernel_to_ function of Liger 0.8.5, with its defaults.
#include "hotswap/models/liger.h"

namespace hotswap {
namespace {

using Options = std::vector<std::pair<std::string, bool>>;

// What Liger names "off" and "on" is false and true here, in the order of its arguments: rope, cross_entropy,
// fused_linear_cross_entropy, [layer_norm,] rms_norm, and the gated MLP.
Options text_options(bool rope, const char* mlp, bool mlp_on = true) {
  return {{"rope", rope},
          {"cross_entropy", false},
          {"fused_linear_cross_entropy", true},
          {"rms_norm", true},
          {mlp, mlp_on}};
}

Options loss_options(Options others) {
  Options all = {{"cross_entropy", false}, {"fused_linear_cross_entropy", true}};
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

Options with(Options options, size_t at, std::pair<std::string, bool> further) {
  options.insert(options.begin() + static_cast<std::ptrdiff_t>(at), std::move(further));
  return options;
}

}  // namespace

const std::vector<LigerFamily>& liger_families() {
  static const std::vector<LigerFamily> table = {
      {"deepseek_v2", text_options(false, "swiglu")},
      {"deepseek_v3", text_options(false, "swiglu")},
      {"deepseek_v4", text_options(false, "swiglu", false), {"rope"}},
      {"exaone4", text_options(true, "swiglu")},
      {"falcon_h1", text_options(true, "swiglu")},
      {"gemma", text_options(true, "geglu")},
      {"gemma2", text_options(true, "geglu")},
      {"gemma3", with(text_options(true, "geglu"), 3, {"layer_norm", true})},
      {"gemma3_text", text_options(true, "geglu")},
      {"gemma4", with(text_options(false, "geglu"), 3, {"layer_norm", false}), {"rope"}},
      {"gemma4_text", text_options(false, "geglu"), {"rope"}},
      {"glm4", text_options(false, "swiglu")},
      {"glm4v", text_options(false, "swiglu")},
      {"glm4v_moe", text_options(false, "swiglu")},
      {"gpt_oss", text_options(true, "swiglu", false)},
      {"granite",
       {{"rope", true},
        {"cross_entropy", true},
        {"fused_linear_cross_entropy", false},
        {"rms_norm", true},
        {"swiglu", true}}},
      {"hunyuan_v1_dense", text_options(true, "swiglu")},
      {"hunyuan_v1_moe", text_options(true, "swiglu")},
      {"internvl", loss_options({{"rms_norm", true}, {"layer_norm", true}})},
      {"llama", text_options(true, "swiglu")},
      {"llama4", with(text_options(true, "swiglu"), 5, {"layer_norm", true})},
      {"llava", loss_options({})},
      {"ministral", text_options(true, "swiglu")},
      {"mistral", text_options(true, "swiglu")},
      {"mixtral", text_options(true, "swiglu")},
      {"mllama", with(text_options(true, "swiglu"), 3, {"layer_norm", true})},
      {"muse_glimmer", with(text_options(true, "swiglu"), 3, {"layer_norm", true})},
      {"nemotron", {{"relu_squared", true}, {"cross_entropy", false}, {"fused_linear_cross_entropy", true}}},
      {"olmo2", text_options(true, "swiglu")},
      {"olmo3", text_options(true, "swiglu")},
      {"paligemma", with(text_options(true, "geglu"), 3, {"layer_norm", true})},
      {"phi3", text_options(true, "swiglu")},
      {"pixtral", {{"rope", true}, {"rms_norm", true}, {"swiglu", true}}},
      {"qwen2", text_options(true, "swiglu")},
      {"qwen2_5_vl", text_options(true, "swiglu")},
      {"qwen2_vl", with(text_options(true, "swiglu"), 4, {"layer_norm", true})},
      {"qwen3", text_options(true, "swiglu")},
      {"qwen3_5", text_options(false, "swiglu")},
      {"qwen3_5_moe", text_options(false, "swiglu")},
      {"qwen3_moe", text_options(true, "swiglu")},
      {"qwen3_next", text_options(false, "swiglu")},
      {"qwen3_vl", text_options(true, "swiglu", false)},
      {"qwen3_vl_moe", text_options(true, "swiglu")},
      {"smollm3", text_options(true, "swiglu")},
      {"smolvlm", loss_options({{"rms_norm", true}, {"layer_norm", true}})},
  };
  return table;
}

}  // namespace hotswap
