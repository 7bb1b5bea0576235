#include "hotswap/models/encoder_models/cross_encoder.h"

#include <ATen/ops/sigmoid.h>

#include "hotswap/base/error.h"
#include "hotswap/models/encoder_models/packed_run.h"
#include "hotswap/models/encoder_models/text_family.h"
#include "hotswap/models/model_folder.h"

namespace hotswap {
namespace {

// The activation that sentence-transformers writes into config.json, under today's key or the one before.
bool has_sigmoid(const Json& config) {
  std::string name = config.get<std::string>("sbert_ce_default_activation_function", "Sigmoid");
  for (const char* key : {"activation_fn", "activation"}) {
    if (const auto own = config.find("sentence_transformers")) name = own->get<std::string>(key, name);
  }
  if (name.ends_with("Sigmoid")) return true;
  if (name.ends_with("Identity")) return false;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "Sigmoid or Identity as the activation of a reranker",
               .got = cat('"', name, "\" in ", config.where()),
               .next = "take another model: this is not implemented"});
}

}  // namespace

bool is_cross_encoder(const Json& config) {
  const auto classes = config.get<std::vector<std::string>>("architectures", {});
  return !classes.empty() && classes.front().ends_with("ForSequenceClassification") && read_num_labels(config) == 1;
}

CrossEncoder::CrossEncoder(std::shared_ptr<TextModel> model, Tokenizer tokenizer, const Json& config,
                           const TokenizerSettings& settings)
    : model_(std::move(model)), tokenizer_(std::move(tokenizer)), settings_(settings), sigmoid_(has_sigmoid(config)) {
  if (model_->num_labels() == 1) return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "a model with one label for reranking",
               .got = cat(model_->num_labels(), " labels in ", config.where()),
               .next = "take a cross-encoder"});
}

std::shared_ptr<CrossEncoder> CrossEncoder::from_pretrained(const std::filesystem::path& name,
                                                            const TextOptions& options) {
  const std::filesystem::path folder = model_folder(name, options.revision);
  TextOptions whole = options;
  whole.exact_head = true;
  auto model = AutoModelForSequenceClassification::from_pretrained(folder, whole);
  const Json config = model->config_json();
  const TokenizerSettings settings = read_tokenizer_settings(folder, model->max_positions());
  return std::make_shared<CrossEncoder>(std::move(model), Tokenizer::from_folder(folder), config, settings);
}

RerankScores CrossEncoder::scores(const std::string& query, const std::vector<std::string>& documents) const {
  std::vector<Tokenizer::TextPair> pairs;
  for (const std::string& document : documents) pairs.emplace_back(query, document);
  EncodeOptions options;  // whole encodings: ids_only would leave out the types of their tokens
  if (max_length() > 0) options.truncation = Truncation{.max_length = max_length()};
  RerankScores result;
  std::vector<TextIds> texts;
  for (Encoding& encoding : tokenizer_.encode_batch(pairs, options)) {
    result.tokens += static_cast<int64_t>(encoding.ids.size());
    texts.push_back({.ids = std::move(encoding.ids)});
    if (settings_.token_types) texts.back().type_ids = std::move(encoding.type_ids);
  }
  const auto rows_of = [&](const TextOutput& out, const std::vector<int64_t>&) {
    return sigmoid_ ? at::sigmoid(out.logits.to(at::kFloat)) : out.logits;
  };
  const Tensor scores = run_packed(*model_, texts, 1, rows_of);
  const float* values = scores.const_data_ptr<float>();
  result.values.assign(values, values + documents.size());
  return result;
}

}  // namespace hotswap
