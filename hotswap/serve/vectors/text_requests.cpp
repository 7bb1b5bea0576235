#include "hotswap/serve/vectors/text_requests.h"

#include <algorithm>
#include <numeric>

#include "hotswap/models/encoder_models/sentence_stages.h"

namespace hotswap::serve {
namespace {

constexpr size_t kMaxInputs = 2048;  // OpenAI's

std::string model_named(RequestBody& body, const ServedTexts& model) {
  const auto name = body.get<std::string>("model");
  if (!name) return model.names.front();
  if (std::find(model.names.begin(), model.names.end(), *name) != model.names.end()) return *name;
  throw ApiError(404, cat("The model '", name->substr(0, 120), " does not exist; there are: ", join(model.names)),
                 "model", "model_not_found");
}

std::vector<int64_t> ids_of_input(const Json& list, const ServedTexts& model) {
  auto ids = list.as<std::vector<int64_t>>();
  const auto vocab = static_cast<int64_t>(model.encoder->tokenizer().vocab_size());
  const auto wrong = std::find_if(ids.begin(), ids.end(), [&](int64_t id) { return id < 0 || id >= vocab; });
  if (wrong != ids.end()) {
    bad_request({cat("ids from 0 to ", vocab - 1), cat(*wrong), "take ids from this model's own /tokenize", "input"});
  }
  if (ids.empty()) bad_request({"at least one id in each input", "none", "leave the empty one out", "input"});
  return ids;
}

// A text, a list of texts, a list of ids, or a list of lists of ids.
void read_input(RequestBody& body, const ServedTexts& model, EmbeddingRequest& request) {
  const auto input = body.json("input");
  if (!input) {
    bad_request(
        {"input: a text, a list of texts, or lists of token ids", "none", "send {\"input\": \"a text\"}", "input"});
  }
  const auto check_count = [](size_t count) {
    if (count > 0 && count <= kMaxInputs) return;
    bad_request({cat("1 to ", kMaxInputs, " inputs"), cat(count),
                 count == 0 ? "send at least one" : "send several requests", "input"});
  };
  body.guarded("input", [&] {
    const bool is_list = input->is_array() && !input->elements().empty();
    if (is_list && input->elements().front().is_number()) {
      request.ids.push_back(ids_of_input(*input, model));
    } else if (is_list && input->elements().front().is_array()) {
      check_count(input->elements().size());
      for (const Json& list : input->elements()) request.ids.push_back(ids_of_input(list, model));
    } else {
      const auto texts =
          input->is_array() ? input->as<std::vector<std::string>>() : std::vector{input->as<std::string>()};
      check_count(texts.size());
      if (std::find(texts.begin(), texts.end(), "") != texts.end()) {
        bad_request({"texts that are not empty", "\"\"", "leave the empty one out", "input"});
      }
      request.ids = model.encoder->ids(texts, request.arguments);
    }
    return 0;
  });
  for (size_t i = 0; i < request.ids.size(); ++i) {
    const auto length = static_cast<int64_t>(request.ids[i].size()), limit = model.max_tokens();
    if (limit == 0 || length <= limit) continue;
    bad_request({cat("at most ", limit, " tokens in each input"), cat(length, " in input ", i),
                 "shorten it, or send \"truncate\": true", "input", "context_length_exceeded"});
  }
}

std::vector<std::string> documents_of(const Json& list) {
  std::vector<std::string> documents;
  for (const Json& one : list.elements()) {
    documents.push_back(one.is_object() ? one.at<std::string>("text") : one.as<std::string>());
  }
  return documents;
}

OutJson usage_of(int64_t tokens) { return {{"prompt_tokens", tokens}, {"total_tokens", tokens}}; }

}  // namespace

std::string encode_base64(std::string_view bytes) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) group = group << 8 | (j < count ? static_cast<uint8_t>(bytes[i + j]) : 0u);
    for (size_t j = 0; j < 4; ++j) text += j <= count ? kAlphabet[group >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

EmbeddingRequest read_embedding_request(const std::string& text, const ServedTexts& model) {
  RequestBody body(text);
  EmbeddingRequest request{.model = model_named(body, model)};
  const auto format = body.get<std::string>("encoding_format").value_or("float");
  if (format != "float" && format != "base64") {
    bad_request({"encoding_format float or base64", came(nlohmann::ordered_json(format)), "send one of these",
                 "encoding_format"});
  }
  request.base64 = format == "base64";
  request.dimensions = body.integer("dimensions", 1, model.encoder->dimensions());
  request.arguments.prompt_name = body.get<std::string>("prompt_name");
  request.arguments.truncate = body.flag("truncate");
  body.guarded("prompt_name", [&] { return model.encoder->prompt_of(request.arguments); });
  read_input(body, model, request);
  body.ignore({"user"});
  request.unknown = body.unknown();
  return request;
}

std::string embedding_answer(const EmbeddingRequest& request, const Tensor& rows, const ServedTexts& model) {
  Tensor vectors = rows;
  if (request.dimensions) {
    vectors = vectors.narrow(1, 0, *request.dimensions);
    if (model.encoder->normalizes()) vectors = unit_length(vectors);
  }
  vectors = vectors.contiguous();
  const float* row = vectors.const_data_ptr<float>();
  const int64_t width = vectors.size(1);
  OutJson data = OutJson::array();
  for (int64_t i = 0; i < vectors.size(0); ++i, row += width) {
    OutJson embedding = request.base64
                            ? OutJson(encode_base64({reinterpret_cast<const char*>(row), width * sizeof(float)}))
                            : OutJson(std::vector<float>(row, row + width));
    data.push_back({{"object", "embedding"}, {"index", i}, {"embedding", std::move(embedding)}});
  }
  int64_t tokens = 0;
  for (const auto& ids : request.ids) tokens += static_cast<int64_t>(ids.size());
  return dump({{"object", "list"}, {"data", std::move(data)}, {"model", request.model}, {"usage", usage_of(tokens)}});
}

RerankRequest read_rerank_request(const std::string& text, const ServedTexts& model) {
  RequestBody body(text);
  RerankRequest request{.model = model_named(body, model)};
  const auto query = body.get<std::string>("query");
  if (!query || query->empty()) {
    bad_request({"query: a text", query ? "\"\"" : "none", "send {\"query\": \"a text\"}", "query"});
  }
  request.query = *query;
  const auto documents = body.json("documents");
  if (!documents || !documents->is_array()) {
    bad_request({"documents: a list of texts, or of objects with text", came(documents),
                 "send {\"documents\": [\"a text\"]}", "documents"});
  }
  request.documents = body.guarded("documents", [&] { return documents_of(*documents); });
  if (request.documents.empty() || request.documents.size() > kMaxInputs) {
    bad_request({cat("1 to ", kMaxInputs, " documents"), cat(request.documents.size()),
                 request.documents.empty() ? "send at least one" : "send several requests", "documents"});
  }
  request.top_n = body.integer("top_n", 1, 1000000);
  request.return_documents = body.flag("return_documents", true);
  body.ignore({"user", "max_chunks_per_doc", "rank_fields"});
  request.unknown = body.unknown();
  return request;
}

std::string rerank_answer(const RerankRequest& request, const RerankScores& scores) {
  std::vector<size_t> order(scores.values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores.values[a] > scores.values[b]; });
  const auto count = static_cast<size_t>(request.top_n.value_or(static_cast<int64_t>(order.size())));
  order.resize(std::min(order.size(), count));
  OutJson results = OutJson::array();
  for (const size_t i : order) {
    OutJson result = {{"index", i}, {"relevance_score", scores.values[i]}};
    if (request.return_documents) result["document"] = {{"text", request.documents[i]}};
    results.push_back(std::move(result));
  }
  return dump({{"id", random_id("rerank-")},
               {"model", request.model},
               {"results", std::move(results)},
               {"usage", usage_of(scores.tokens)}});
}

}  // namespace hotswap::serve
