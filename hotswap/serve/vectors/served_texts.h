// A model that reads texts, as requests see it: vectors of a sentence encoder, or scores of a reranker.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hotswap/models/encoder_models/cross_encoder.h"
#include "hotswap/models/encoder_models/sentence_encoder.h"

namespace hotswap::serve {

struct ServedTexts {
  std::shared_ptr<SentenceEncoder> encoder;  // null: it makes no vectors
  std::shared_ptr<CrossEncoder> reranker;    // null: it ranks nothing
  std::vector<std::string> names;            // a request without one gets the first

  const TextModel& model() const { return encoder ? encoder->model() : reranker->model(); }
  int64_t max_tokens() const { return encoder ? encoder->max_seq_length() : reranker->max_length(); }
};

}  // namespace hotswap::serve
