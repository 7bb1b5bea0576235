// A reranker: how well each document answers a query, by a model that reads both at once.
//
//   const auto reranker = CrossEncoder::from_pretrained("models/ms-marco-MiniLM-L6-v2", {.use_kernels = true});
//   const std::vector<double> scores = reranker->scores("capital of France", {"Paris ...", "Bread ..."}).values;
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hotswap/models/encoder_models/text_model.h"
#include "hotswap/models/encoder_models/tokenizer_settings.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {

struct RerankScores {
  std::vector<double> values;  // of the documents, in their order
  int64_t tokens = 0;          // that were read
};

class CrossEncoder {
 public:
  // A folder, or org/name on the Hub, of a model ForSequenceClassification with one label. Error for another, and for
  // one whose checkpoint lacks the head.
  static std::shared_ptr<CrossEncoder> from_pretrained(const std::filesystem::path& name,
                                                       const TextOptions& options = {});
  CrossEncoder(std::shared_ptr<TextModel> model, Tokenizer tokenizer, const Json& config,
               const TokenizerSettings& settings);

  // As sentence-transformers: the sigmoid of the logit, or what config.json has instead. What is too long is cut.
  RerankScores scores(const std::string& query, const std::vector<std::string>& documents) const;
  int64_t max_length() const { return settings_.max_length; }  // tokens of query and document in total; 0: no limit
  TextModel& model() const { return *model_; }

 private:
  std::shared_ptr<TextModel> model_;
  Tokenizer tokenizer_;
  TokenizerSettings settings_;
  bool sigmoid_ = true;
};

// Does config.json name a class ForSequenceClassification with one label?
bool is_cross_encoder(const Json& config);

}  // namespace hotswap
