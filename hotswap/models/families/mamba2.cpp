// Mamba-2: heads of a recurrence with one decay each, which B and C of a group share.
#include "hotswap/models/families/mamba2.h"

#include <algorithm>
#include <limits>

#include "hotswap/base/error.h"
#include "hotswap/layers/mamba2_mixer.h"
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mamba.h"
#include "hotswap/models/family.h"

namespace hotswap {
namespace {

// Python's infinity, which JSON has not, is written {"__float__": "Infinity"}.
double time_step_bound(const Json& json) {
  if (json.is_number()) return json.as<double>();
  if (json.is_object() && json.get<std::string>("__float__", "") == "Infinity") {
    return std::numeric_limits<double>::infinity();
  }
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = "time_step_limit of two values, the second one perhaps infinite",
               .got = json.where(),
               .next = "write it as [0.0, Infinity], the default, or as two finite values"});
}

}  // namespace

std::vector<std::string> read_mixed_layers(const Json& json, const char* key, const std::vector<std::string>& known) {
  auto types = json.at<std::vector<std::string>>(key);
  for (std::string& type : types) {
    if (type == "mamba") type = kRecurrentLayer;
    if (type == "attention") type = "full_attention";
    if (std::find(known.begin(), known.end(), type) != known.end()) continue;
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat(key, " of ", join(known)),
                 .got = cat('"', type, "\" in ", json.where()),
                 .next = "take another checkpoint: this is not implemented"});
  }
  return types;
}

void check_layer_count(const ModelConfig& c, const Json& json) {
  if (static_cast<int64_t>(c.layer_types.size()) == c.num_hidden_layers) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat(c.num_hidden_layers, " layer_types, one a layer"),
               .got = cat(c.layer_types.size(), " in ", json.where()),
               .next = "list one type a layer"});
}

void read_time_step_limit(MambaOptions& m, const Json& json) {
  m.dt_max = std::numeric_limits<double>::infinity();
  if (!json.has("time_step_limit")) return;
  const std::vector<Json> limits = json.child("time_step_limit").elements();
  if (limits.size() != 2) time_step_bound(json.child("time_step_limit"));  // which is an Error
  m.dt_min = time_step_bound(limits[0]);
  m.dt_max = time_step_bound(limits[1]);
}

void check_heads(const MambaOptions& m, const Json& json, const Mamba2Keys& k) {
  if (m.heads * m.head_dim == m.channels && m.heads % m.groups == 0) return;
  throw Error(
      {.kind = ErrorKind::kCorrupt,
       .wanted = cat(k.heads, " of ", k.head_dim, " that make ", m.channels, " channels in total, in ", k.groups),
       .got = cat(m.heads, " of ", m.head_dim, " in ", m.groups, " in ", json.where()),
       .next = cat("set ", k.heads, " to ", k.channels, " / ", k.head_dim, ", a multiple of ", k.groups)});
}

int64_t bamba_channels(const ModelConfig& c, const Json& json) {
  return positive(json, "mamba_expand", 2) * c.hidden_size;
}

void read_bamba_mixer(ModelConfig& c, const Json& json, int64_t channels) {
  refuse_if(c.hidden_act != "silu", json, "a hidden_act other than silu");
  MambaOptions& m = c.mamba;
  m.hidden_size = c.hidden_size;
  m.channels = channels;
  m.state = positive(json, "mamba_d_state", 256);
  m.conv_width = positive(json, "mamba_d_conv", 4);
  m.conv_bias = flag(json, "mamba_conv_bias", true);
  m.bias = flag(json, "mamba_proj_bias", false);
  m.heads = positive(json, "mamba_n_heads", 128);
  m.groups = positive(json, "mamba_n_groups", 1);
  m.chunk_size = positive(json, "mamba_chunk_size", 256);
  const bool is_auto = !json.has("mamba_d_head") || json.child("mamba_d_head").is_string();
  m.head_dim = is_auto ? channels / m.heads : positive(json, "mamba_d_head");
  m.gated_norm_eps = c.rms_norm_eps;
  m.time_step.is_special = m.time_step.draws_bias = false;
  read_time_step_limit(m, json);
  check_heads(m, json, {"mamba_n_heads", "mamba_d_head", "mamba_n_groups", "the channels"});
}

std::unique_ptr<TokenMixer> make_mixed_mixer(const ModelConfig& c, int64_t layer) {
  if (recurs(c, layer)) return std::make_unique<Mamba2Mixer>(mamba_options(c, layer));
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = c.attention_bias;
  return std::make_unique<SelfAttention>(attention);
}

}  // namespace hotswap

namespace hotswap::mamba2 {
namespace {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_mamba_config(json, /*tie_word_embeddings=*/false);
  MambaOptions& m = c.mamba;
  m.state = positive(json, "state_size", 128);
  m.heads = positive(json, "num_heads", 128);
  m.head_dim = positive(json, "head_dim", 64);
  m.groups = positive(json, "n_groups", 8);
  m.chunk_size = positive(json, "chunk_size", 256);
  m.channels = positive(json, "expand", 2) * c.hidden_size;
  m.gated_norm_eps = c.rms_norm_eps;
  read_time_step_limit(m, json);
  check_heads(m, json);
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  return std::make_unique<MambaBlock>(c, std::make_unique<Mamba2Mixer>(mamba_options(c, layer)));
}

}  // namespace

const RegisteredFamily kMamba2({.model_type = "mamba2",
                                .class_name = "Mamba2ForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .tensor_rules = backbone_names,
                                .own_parameter_order = true,
                                .module_names = backbone_names});

}  // namespace hotswap::mamba2
