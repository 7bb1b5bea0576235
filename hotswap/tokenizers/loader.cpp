// Tokenizers from files.
#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/tokenizers/model_json.h"
#include "hotswap/tokenizers/normalizer_json.h"
#include "hotswap/tokenizers/ranked_tokens.h"
#include "hotswap/tokenizers/tokenizer_config.h"
#include "hotswap/tokenizers/tokenizer_impl.h"
#include "hotswap/tokenizers/tokenizer_json.h"
#include "hotswap/tokenizers/truncation.h"

namespace hotswap {
namespace {

using namespace tokenizers;
namespace fs = std::filesystem;

std::unique_ptr<AddedTokens> read_added_tokens(const Json& json, const Json* config, const Model& model,
                                               const Normalizer* normalizer) {
  std::vector<AddedToken> tokens;
  const auto list = json.find("added_tokens");
  for (const Json& entry : list ? list->elements() : std::vector<Json>{}) {
    entry.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    tokens.push_back({.id = entry.at<int64_t>("id"),
                      .content = entry.at<std::string>("content"),
                      .single_word = entry.at<bool>("single_word"),
                      .lstrip = entry.at<bool>("lstrip"),
                      .rstrip = entry.at<bool>("rstrip"),
                      .normalized = entry.at<bool>("normalized"),
                      .special = entry.at<bool>("special")});
  }
  if (config != nullptr) add_named_tokens(*config, model.vocabulary(), tokens);
  return std::make_unique<AddedTokens>(std::move(tokens), model.vocabulary(), normalizer,
                                       cat(json.where(), ": added_tokens"));
}

// config: tokenizer_config.json, where there is one.
std::shared_ptr<Tokenizer::Parts> read_parts(std::string_view text, const std::string& where,
                                             const Json* config = nullptr) {
  TokenizerJson file = parse_tokenizer_json(text, where);
  const Json& json = file.rest;
  json.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
             "decoder", "model"});
  if (const auto version = json.get<std::string>("version", "1.0"); version != "1.0") {
    throw Error(
        {.kind = ErrorKind::kUnsupported,
         .wanted = cat("version 1.0 of ", where),
         .got = cat("'", version, "'"),
         .next = "this version is not implemented; save the tokenizer with a transformers that writes version 1.0"});
  }
  if (config != nullptr) refuse_other_ids(*config, json);
  auto parts = std::make_shared<Tokenizer::Parts>();
  if (const auto found = json.find("normalizer")) parts->normalizer = read_normalizer(*found);
  if (const auto found = json.find("pre_tokenizer")) parts->pre_tokenizer = read_pre_tokenizer(*found);
  if (const auto found = json.find("decoder")) parts->decoder = read_decoder(*found);
  parts->model = read_model(file);
  if (const auto found = json.find("truncation")) parts->truncation = read_truncation(*found);
  if (const auto found = json.find("padding")) parts->padding = read_padding(*found);
  parts->added = read_added_tokens(json, config, *parts->model, parts->normalizer.get());
  const auto token_of = [&](int64_t id) {
    const std::string* token = parts->token(id);
    return token == nullptr ? std::nullopt : std::optional(*token);
  };
  if (const auto found = json.find("post_processor")) parts->post_processor = read_post_processor(*found, token_of);
  parts->finish();
  return parts;
}

// "<s>", or an object with it as its content.
std::string token_name(const Json& json) {
  return json.is_object() ? json.at<std::string>("content") : json.as<std::string>();
}

void read_special_ids(const Json& json, const Tokenizer& tokenizer, SpecialIds& special) {
  const std::pair<const char*, std::optional<int64_t>*> roles[] = {{"bos_token", &special.bos},
                                                                   {"eos_token", &special.eos},
                                                                   {"pad_token", &special.pad},
                                                                   {"unk_token", &special.unk}};
  for (const auto& [role, id] : roles) {
    const auto found = json.find(role);
    if (!found || id->has_value()) continue;
    *id = tokenizer.token_to_id(token_name(*found));
    if (!*id) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("a token of tokenizer.json at ", found->where()),
                   .got = cat("'", token_name(*found), "'"),
                   .next = "the two files do not belong together; fetch them again"});
    }
  }
}

// What a folder without tokenizer.json has instead, of the forms that are not read.
std::string other_form(const fs::path& folder) {
  for (const char* name : {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.txt"}) {
    if (fs::exists(folder / name)) return name;
  }
  return "none";
}

}  // namespace

Tokenizer Tokenizer::from_json(std::string_view text, const std::string& where) {
  return Tokenizer(read_parts(text, where));
}

Tokenizer Tokenizer::from_file(const fs::path& tokenizer_json) {
  const std::string form = tokenizer_json.extension().string();
  if (form == ".model" || form == ".tiktoken") {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("a tokenizer.json at ", tokenizer_json.string()),
                 .got = form == ".model" ? "a SentencePiece model" : "tokens of tiktoken without the pattern of words",
                 .next = form == ".model"
                             ? "this form is not read; save the tokenizer with a fast class of transformers"
                             : "pass the pattern to Tokenizer::from_tiktoken"});
  }
  if (tokenizer_json.filename() == "tekken.json")
    return read_tekken(read_file(tokenizer_json), tokenizer_json.string());
  return from_json(read_file(tokenizer_json), tokenizer_json.string());
}

Tokenizer Tokenizer::from_tiktoken(const fs::path& file, const std::string& pattern,
                                   const std::vector<std::string>& special_tokens) {
  return read_tiktoken(read_file(file), pattern, special_tokens, file.string());
}

Tokenizer Tokenizer::from_folder(const fs::path& folder) {
  const fs::path file = folder / "tokenizer.json";
  if (!fs::exists(file) && fs::exists(folder / "tekken.json")) return from_file(folder / "tekken.json");
  if (!fs::exists(file)) {
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = cat("a tokenizer.json in ", folder.string()),
                 .got = other_form(folder),
                 .next = "only this form is read; save the tokenizer with a fast class of transformers"});
  }
  std::optional<Json> config;
  if (fs::exists(folder / "tokenizer_config.json")) config = Json::read(folder / "tokenizer_config.json");
  auto parts = read_parts(read_file(file), file.string(), config ? &*config : nullptr);
  Tokenizer tokenizer(parts);
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    if (fs::exists(folder / name)) read_special_ids(Json::read(folder / name), tokenizer, parts->special);
  }
  return tokenizer;
}

}  // namespace hotswap
