#include "hotswap/tokenizers/model_json.h"

#include "hotswap/base/error.h"
#include "hotswap/tokenizers/bpe.h"
#include "hotswap/tokenizers/unigram.h"
#include "hotswap/tokenizers/word_level.h"
#include "hotswap/tokenizers/word_piece.h"

namespace hotswap::tokenizers {
namespace {

// The vocabulary's kind must be the one that the type has.
void check_lists(const TokenizerJson& file, const Json& model, bool scored) {
  for (const char* list : {"vocab", "merges"}) {
    if (const auto left = model.find(list)) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat(list[0] == 'v' ? "an object of ids, or a list of pairs, at " : "a list of pairs at ",
                                 left->where()),
                   .got = "something else",
                   .next = "fetch the file again; it is damaged or was not written by the tokenizers library"});
    }
  }
  const bool empty = scored ? file.pieces.empty() : file.vocabulary.empty();
  if (!empty) return;
  const bool other = scored ? !file.vocabulary.empty() : !file.pieces.empty();
  throw Error(
      {.kind = ErrorKind::kCorrupt,
       .wanted = cat(scored ? "a vocabulary, a list of pieces with scores, at " : "a vocabulary, an object of ids, at ",
                     model.where(), ".vocab"),
       .got = other ? "the other kind of vocabulary" : "none",
       .next = "fetch the file again"});
}

std::unique_ptr<Model> read_bpe(TokenizerJson& file, const Json& model) {
  model.only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
              "byte_fallback", "ignore_merges", "vocab", "merges"});
  check_lists(file, model, false);
  if (model.get<double>("dropout", 0.0) != 0.0) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("no dropout at ", model.where()),
                 .got = cat(model.at<double>("dropout")),
                 .next = "dropout makes ids random and is not implemented; remove it from the file"});
  }
  BpeConfig config;
  config.vocabulary = std::move(file.vocabulary);
  config.merges = std::move(file.merges);
  if (model.has("unk_token")) config.unknown_token = model.at<std::string>("unk_token");
  config.fuse_unknown = model.get<bool>("fuse_unk", false);
  config.byte_fallback = model.get<bool>("byte_fallback", false);
  config.ignore_merges = model.get<bool>("ignore_merges", false);
  config.continuing_prefix = model.get<std::string>("continuing_subword_prefix", "");
  config.word_suffix = model.get<std::string>("end_of_word_suffix", "");
  config.where = model.where();
  return std::make_unique<Bpe>(std::move(config));
}

std::unique_ptr<Model> read_word_piece(TokenizerJson& file, const Json& model) {
  model.only({"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  check_lists(file, model, false);
  WordPieceConfig config;
  config.vocabulary = std::move(file.vocabulary);
  config.unknown_token = model.at<std::string>("unk_token");
  config.continuing_prefix = model.at<std::string>("continuing_subword_prefix");
  config.max_characters = model.at<int64_t>("max_input_chars_per_word");
  config.where = model.where();
  if (config.max_characters < 0) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("max_input_chars_per_word of 0 or more at ", model.where()),
                 .got = cat(config.max_characters),
                 .next = "set it to the longest word that is looked up, such as 100"});
  }
  return std::make_unique<WordPiece>(std::move(config));
}

std::unique_ptr<Model> read_word_level(TokenizerJson& file, const Json& model) {
  model.only({"type", "unk_token", "vocab"});
  check_lists(file, model, false);
  return std::make_unique<WordLevel>(std::move(file.vocabulary), model.at<std::string>("unk_token"), model.where());
}

std::unique_ptr<Model> read_unigram(TokenizerJson& file, const Json& model) {
  model.only({"type", "unk_id", "vocab", "byte_fallback"});
  check_lists(file, model, true);
  UnigramConfig config;
  config.pieces = std::move(file.pieces);
  if (model.has("unk_id")) config.unknown_id = model.at<int64_t>("unk_id");
  config.byte_fallback = model.get<bool>("byte_fallback", false);
  config.where = model.where();
  return std::make_unique<Unigram>(std::move(config));
}

// Files of before 2020 have no type.
std::string type_of(const TokenizerJson& file, const Json& model) {
  if (model.has("type")) return model.at<std::string>("type");
  if (!file.pieces.empty()) return "Unigram";
  if (!file.merges.empty()) return "BPE";
  return model.has("max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

}  // namespace

std::unique_ptr<Model> read_model(TokenizerJson& file) {
  const Json model = file.rest.child("model");
  const std::string type = type_of(file, model);
  if (type == "BPE") return read_bpe(file, model);
  if (type == "WordPiece") return read_word_piece(file, model);
  if (type == "WordLevel") return read_word_level(file, model);
  if (type == "Unigram") return read_unigram(file, model);
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("a model of type BPE, WordPiece, WordLevel or Unigram at ", model.where()),
               .got = cat("type ", type),
               .next = "this type is not implemented; use a tokenizer with one of these"});
}

}  // namespace hotswap::tokenizers
