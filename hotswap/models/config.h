// config.json of a decoder: what Llama-like families share, read strictly. An absent required key and a value that is
// not implemented are Errors that name it; nothing is guessed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/base/json.h"
#include "hotswap/layers/rope.h"

namespace hotswap {

struct DecoderConfig {
  std::string model_type;
  int64_t vocab = 0, dim = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
  double norm_eps = 0;
  std::string activation;
  RopeParameters rope;
  bool tied = false;            // the output head is the embedding
  bool attention_bias = false;  // q, k, v and o projections
  bool mlp_bias = false;
  double attention_dropout = 0;
  double initializer_range = 0.02;
  std::optional<int64_t> bos, pad;
  std::vector<int64_t> eos;
};

// What families differ in when a key is absent.
struct DecoderDefaults {
  std::optional<int64_t> head_dim;  // none: hidden_size / num_attention_heads
};

// Reads and checks all of DecoderConfig.
DecoderConfig read_decoder_config(const Json& config, const DecoderDefaults& defaults = {});

// "float32", "bfloat16", "float16" (with or without "torch."); `where` says whose value it was.
at::ScalarType dtype_from(const std::string& name, const std::string& where);
std::string dtype_name(at::ScalarType dtype);

// The type that config.json says its weights have ("dtype", older "torch_dtype").
std::optional<at::ScalarType> config_dtype(const Json& config);

// An integer or a list of them, as token ids are written in configs; empty when absent or null.
std::vector<int64_t> read_ids(const Json& json, std::string_view key);

}  // namespace hotswap
