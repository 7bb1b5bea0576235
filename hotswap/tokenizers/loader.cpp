// Tokenizers from files.
#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/tokenizers/tokenizer_impl.h"
#include "hotswap/tokenizers/tokenizer_json.h"

namespace hotswap {
namespace {

using namespace tokenizers;
namespace fs = std::filesystem;

std::unique_ptr<Bpe> read_model(TokenizerJson& file) {
  const Json model = file.rest.child("model");
  // Files of before 2020 have no type; what has merges is BPE.
  const auto type = model.get<std::string>("type", file.merges.empty() ? "of no name" : "BPE");
  if (type != "BPE") {
    throw Error({.wanted = cat("a model of type BPE at ", model.where()),
                 .got = cat("type ", type),
                 .next = "this type is not implemented; use a tokenizer with one of these"});
  }
  model.only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
              "byte_fallback", "ignore_merges", "vocab", "merges"});
  for (const char* list : {"vocab", "merges"}) {
    if (const auto left = model.find(list)) {
      throw Error({.wanted = cat(list[0] == 'v' ? "an object of ids at " : "a list of pairs at ", left->where()),
                   .got = "something else",
                   .next = "correct the file"});
    }
  }
  if (file.vocabulary.empty()) {
    throw Error(
        {.wanted = cat("a vocabulary at ", model.where(), ".vocab"), .got = "none", .next = "fetch the file again"});
  }
  if (model.get<double>("dropout", 0.0) != 0.0) {
    throw Error({.wanted = cat("no dropout at ", model.where()),
                 .got = cat(model.at<double>("dropout")),
                 .next = "dropout makes ids random and is not implemented; remove it from the file"});
  }
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.get<std::string>(affix, "").empty()) {
      throw Error({.wanted = cat("no ", affix, " at ", model.where()),
                   .got = cat("'", model.at<std::string>(affix), "'"),
                   .next = "it is not implemented; use a tokenizer without it"});
    }
  }
  BpeConfig config;
  config.vocabulary = std::move(file.vocabulary);
  config.merges = std::move(file.merges);
  if (model.has("unk_token")) config.unknown_token = model.at<std::string>("unk_token");
  config.fuse_unknown = model.get<bool>("fuse_unk", false);
  config.byte_fallback = model.get<bool>("byte_fallback", false);
  config.ignore_merges = model.get<bool>("ignore_merges", false);
  config.where = model.where();
  return std::make_unique<Bpe>(std::move(config));
}

std::unique_ptr<AddedTokens> read_added_tokens(const Json& json, const Bpe& model, const Normalizer* normalizer) {
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
  return std::make_unique<AddedTokens>(std::move(tokens), model.vocabulary(), normalizer,
                                       cat(json.where(), ": added_tokens"));
}

std::shared_ptr<Tokenizer::Parts> read_parts(std::string_view text, const std::string& where) {
  TokenizerJson file = parse_tokenizer_json(text, where);
  const Json& json = file.rest;
  json.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
             "decoder", "model"});
  if (const auto version = json.get<std::string>("version", "1.0"); version != "1.0") {
    throw Error(
        {.wanted = cat("version 1.0 of ", where),
         .got = cat("'", version, "'"),
         .next = "this version is not implemented; save the tokenizer with a transformers that writes version 1.0"});
  }
  auto parts = std::make_shared<Tokenizer::Parts>();
  if (const auto found = json.find("normalizer")) parts->normalizer = read_normalizer(*found);
  if (const auto found = json.find("pre_tokenizer")) parts->pre_tokenizer = read_pre_tokenizer(*found);
  if (const auto found = json.find("decoder")) parts->decoder = read_decoder(*found);
  parts->model = read_model(file);
  parts->added = read_added_tokens(json, *parts->model, parts->normalizer.get());
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
      throw Error({.wanted = cat("a token of tokenizer.json at ", found->where()),
                   .got = cat("'", token_name(*found), "'"),
                   .next = "the two files do not belong together; fetch them again"});
    }
  }
}

}  // namespace

Tokenizer Tokenizer::from_json(std::string_view text, const std::string& where) {
  return Tokenizer(read_parts(text, where));
}

Tokenizer Tokenizer::from_file(const fs::path& tokenizer_json) {
  return from_json(read_file(tokenizer_json), tokenizer_json.string());
}

Tokenizer Tokenizer::from_folder(const fs::path& folder) {
  const fs::path file = folder / "tokenizer.json";
  if (!fs::exists(file)) {
    throw Error({.wanted = cat("a tokenizer.json in ", folder.string()),
                 .got = "none",
                 .next = "only this form is read; save the tokenizer with a fast class of transformers"});
  }
  auto parts = read_parts(read_file(file), file.string());
  Tokenizer tokenizer(parts);
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    if (fs::exists(folder / name)) read_special_ids(Json::read(folder / name), tokenizer, parts->special);
  }
  return tokenizer;
}

}  // namespace hotswap
