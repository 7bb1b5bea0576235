// A Llama of a few hundred weights that trains, for the tests of training.
#pragma once

#include <memory>

#include "hotswap/base/json.h"
#include "hotswap/models/auto.h"

namespace hotswap::test_support {

struct TinyLlamaShape {
  int64_t hidden = 16, layers = 1, positions = 32;
  double initializer_range = 0.1;
  at::ScalarType dtype = at::kFloat;
};

// 16 tokens, two heads; always the same weights.
inline std::shared_ptr<CausalLM> tiny_llama(const TinyLlamaShape& of = {}) {
  const nlohmann::ordered_json config = {{"model_type", "llama"},
                                         {"vocab_size", 16},
                                         {"hidden_size", of.hidden},
                                         {"num_hidden_layers", of.layers},
                                         {"num_attention_heads", 2},
                                         {"num_key_value_heads", 2},
                                         {"intermediate_size", 24},
                                         {"rms_norm_eps", 1e-5},
                                         {"max_position_embeddings", of.positions},
                                         {"initializer_range", of.initializer_range}};
  auto model = AutoModelForCausalLM::from_config(Json::parse(config.dump(), "config.json"));
  model->requires_grad(true);
  model->init_weights(3, of.dtype);
  return model;
}

}  // namespace hotswap::test_support
