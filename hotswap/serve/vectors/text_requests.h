// The protocols for models of texts: OpenAI's /v1/embeddings, Jina's and Cohere's /v1/rerank.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hotswap/serve/answer_format.h"
#include "hotswap/serve/request_body.h"
#include "hotswap/serve/vectors/served_texts.h"

namespace hotswap::serve {

struct EmbeddingRequest {
  std::string model;
  std::vector<std::vector<int64_t>> ids;  // of each input, with the prompt
  EncodeArguments arguments;
  std::optional<int64_t> dimensions;
  bool base64 = false;
  std::vector<std::string> unknown;  // fields that nothing knows
};
// ApiError 400 that names the field; 404 for another model.
EmbeddingRequest read_embedding_request(const std::string& text, const ServedTexts& model);
// rows: [inputs, dimensions] float32, as the model makes them
std::string embedding_answer(const EmbeddingRequest& request, const Tensor& rows, const ServedTexts& model);

struct RerankRequest {
  std::string model, query;
  std::vector<std::string> documents;
  std::optional<int64_t> top_n;
  bool return_documents = true;
  std::vector<std::string> unknown;
};
RerankRequest read_rerank_request(const std::string& text, const ServedTexts& model);
std::string rerank_answer(const RerankRequest& request, const RerankScores& scores);

std::string encode_base64(std::string_view bytes);  // standard alphabet, padded

}  // namespace hotswap::serve
