#include "hotswap/models/encoders/encoder_config.h"

#include "hotswap/base/error.h"
#include "hotswap/layers/activation.h"
#include "hotswap/models/config.h"
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/encoder_models/text_family.h"
#include "hotswap/models/formats/quantised.h"

namespace hotswap {
namespace {

constexpr int64_t kMaxEncoderLayers = 10000;  // a layer takes memory before any weight is read

void check_encoder(const EncoderConfig& c, const Json& config, const EncoderKeys& keys) {
  if (c.num_hidden_layers > kMaxEncoderLayers) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("at most ", kMaxEncoderLayers, " for ", keys.num_hidden_layers),
                 .got = cat(c.num_hidden_layers, " in ", config.where()),
                 .next = "set it to the number of layers in the weights"});
  }
  if (c.hidden_size % c.num_attention_heads != 0) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat(keys.hidden_size, " that is a multiple of ", keys.num_attention_heads),
                 .got = cat(c.hidden_size, " and ", c.num_attention_heads, " in ", config.where()),
                 .next = "set both as the weights have them"});
  }
  activation_kind(c.hidden_act, cat(config.where(), ": ", keys.hidden_act));  // known, or an Error
  refuse_if(flag(config, "is_decoder", false), config, "is_decoder = true");
  refuse_if(flag(config, "add_cross_attention", false), config, "add_cross_attention = true");
  const auto positions = config.get<std::string>("position_embedding_type", "absolute");
  refuse_if(positions != "absolute", config, cat("position_embedding_type = ", positions));
}

}  // namespace

EncoderConfig read_encoder_config(const Json& config, const EncoderKeys& keys) {
  check_quantisation(config, /*reads_mxfp4=*/false);
  EncoderConfig c;
  c.model_type = config.at<std::string>("model_type");
  c.vocab_size = positive(config, "vocab_size");
  c.hidden_size = positive(config, keys.hidden_size);
  c.intermediate_size = positive(config, keys.intermediate_size);
  c.num_hidden_layers = positive(config, keys.num_hidden_layers);
  c.num_attention_heads = positive(config, keys.num_attention_heads);
  c.max_position_embeddings = positive(config, "max_position_embeddings");
  if (keys.type_vocab_size != nullptr) c.type_vocab_size = positive(config, keys.type_vocab_size, 2);
  c.pad_token_id = keys.pad_token_id;
  if (config.raw().contains("pad_token_id")) {
    c.pad_token_id = config.has("pad_token_id") ? std::optional(config.at<int64_t>("pad_token_id")) : std::nullopt;
  }
  c.layer_norm_eps = keys.layer_norm_eps != nullptr ? positive_number(config, keys.layer_norm_eps, keys.eps) : keys.eps;
  c.hidden_act = config.get<std::string>(keys.hidden_act, keys.activation);
  c.hidden_dropout = read_dropout(config, keys.hidden_dropout, keys.dropout);
  c.attention_dropout = read_dropout(config, keys.attention_dropout, keys.dropout);
  c.classifier_dropout = read_dropout(config, "classifier_dropout", c.hidden_dropout);
  c.tie_word_embeddings = config.get<bool>("tie_word_embeddings", true);
  c.initializer_range = config.get<double>("initializer_range", 0.02);
  c.num_labels = read_num_labels(config);
  check_encoder(c, config, keys);
  return c;
}

}  // namespace hotswap
