// What Mamba-2 and the families that mix it with attention share of their configs, and the choice of a layer's mixer.
#pragma once

#include <memory>

#include "hotswap/layers/token_mixer.h"
#include "hotswap/models/config.h"
#include "hotswap/models/formats/gguf_model.h"
#include "hotswap/models/formats/tensor_rules.h"

namespace hotswap {

inline constexpr const char* kRecurrentLayer = "linear_attention";  // transformers' word in layer_types

inline bool recurs(const ModelConfig& config, int64_t layer) { return config.layer_types.at(layer) == kRecurrentLayer; }

// Layers by `json`'s key of types, a layer each, older files' names ("mamba", "attention") among them; Error where one
// is none of `known`.
std::vector<std::string> read_mixed_layers(const Json& json, const char* key, const std::vector<std::string>& known);
// Error where config.layer_types has not one for each layer.
void check_layer_count(const ModelConfig& config, const Json& json);

// Between which dt is clamped; where the key is absent, 0 and infinity.
void read_time_step_limit(MambaOptions& options, const Json& json);

// Error where all heads, in groups, are not as wide as the channels; with the names of their keys.
struct Mamba2Keys {
  const char *heads = "num_heads", *head_dim = "head_dim", *groups = "n_groups";
  const char* channels = "expand * hidden_size";
};
void check_heads(const MambaOptions& options, const Json& json, const Mamba2Keys& keys = {});

// Bamba's keys of its mixer (mamba_n_heads, mamba_d_state, ...), which other families took over. `channels`: of all
// heads.
void read_bamba_mixer(ModelConfig& config, const Json& json, int64_t channels);
// mamba_expand times hidden_size
int64_t bamba_channels(const ModelConfig& config, const Json& json);

// Mamba-2's mixer where the layer recurs, else attention, with a bias on every projection where
// config.attention_bias is set.
std::unique_ptr<TokenMixer> make_mixed_mixer(const ModelConfig& config, int64_t layer);

// Of GGUF files: the mixer's tensors, under `part` in the model ("model.layers.*.mamba."); their keys, less the
// architecture's prefix; and these as Bamba's config has them.
TensorRules gguf_mamba2_rules(const std::string& part);
const std::vector<std::string>& gguf_mamba2_keys();
void gguf_extend_bamba_mixer(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config);
// Does a layer have that tensor, such as "ssm_conv1d.bias"?
bool gguf_has_in_a_layer(const GgufFile& file, const std::string& tensor);

}  // namespace hotswap
