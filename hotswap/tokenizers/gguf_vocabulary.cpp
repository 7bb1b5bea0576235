// Tokenizers from the metadata of GGUF files.
#include "hotswap/tokenizers/gguf_vocabulary.h"

#include <algorithm>
#include <unordered_map>

#include "hotswap/base/error.h"
#include "hotswap/tokenizers/bpe.h"
#include "hotswap/tokenizers/gguf_splits.h"
#include "hotswap/tokenizers/tokenizer_impl.h"
#include "hotswap/tokenizers/unicode.h"

namespace hotswap {
namespace {

using namespace tokenizers;

using namespace gguf_token;

void check(const GgufVocabulary& v) {
  const auto refuse = [&](std::string wanted, std::string got) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat(wanted, " in ", v.where),
                 .got = std::move(got),
                 .next = "fetch the file again"});
  };
  if (v.tokens.empty()) refuse("tokenizer.ggml.tokens", "none");
  if (!v.scores.empty() && v.scores.size() != v.tokens.size()) {
    refuse(cat("tokenizer.ggml.scores for ", v.tokens.size(), " tokens"), cat(v.scores.size()));
  }
  if (!v.token_types.empty() && v.token_types.size() != v.tokens.size()) {
    refuse(cat("tokenizer.ggml.token_type for ", v.tokens.size(), " tokens"), cat(v.token_types.size()));
  }
  for (const std::string& token : v.tokens) {
    if (find_invalid_utf8(token) != std::string_view::npos) refuse("tokens in UTF-8", cat("'", utf8_lossy(token), "'"));
  }
  for (const auto& id : {v.bos, v.eos, v.unk, v.pad}) {
    if (id && (*id < 0 || *id >= static_cast<int64_t>(v.tokens.size()))) {
      refuse(cat("special token ids below ", v.tokens.size()), cat(*id));
    }
  }
}

int32_t type_of_token(const GgufVocabulary& v, size_t id) { return v.token_types.empty() ? 1 : v.token_types[id]; }

std::vector<std::pair<std::string, std::string>> read_merges(const GgufVocabulary& v) {
  std::vector<std::pair<std::string, std::string>> merges;
  for (const std::string& merge : v.merges) {
    const size_t blank = merge.find(' ');
    if (blank == std::string::npos || merge.find(' ', blank + 1) != std::string::npos) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("tokenizer.ggml.merges like 'a b' in ", v.where),
                   .got = cat("'", merge, "'"),
                   .next = "fetch the file again"});
    }
    merges.emplace_back(merge.substr(0, blank), merge.substr(blank + 1));
  }
  return merges;
}

// A SentencePiece vocabulary has no merges, but scores: two tokens merge when together they are a token, and the
// token of the highest score comes first; of its ways to be put together, the one of the highest parts.
std::vector<std::pair<std::string, std::string>> merges_by_score(const GgufVocabulary& v) {
  if (v.scores.empty()) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("tokenizer.ggml.merges or tokenizer.ggml.scores in ", v.where),
                 .got = "neither",
                 .next = "fetch the file again"});
  }
  std::unordered_map<std::string_view, float> scores;
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    const int32_t type = type_of_token(v, id);  // the others never come of a merge, nor go into one
    if (type != kUnknown && type != kControl && type != kByte) scores[v.tokens[id]] = v.scores[id];
  }
  struct Way {
    std::string_view left, right;
    float score, left_score, right_score;
  };
  std::vector<Way> all;
  for (const std::string& token : v.tokens) {
    const auto whole = scores.find(token);
    if (whole == scores.end()) continue;
    const size_t before = all.size();
    for (size_t at = 1; at < token.size(); ++at) {
      if (is_continuation(token[at])) continue;
      const auto left = scores.find(std::string_view(token).substr(0, at));
      const auto right = scores.find(std::string_view(token).substr(at));
      if (left == scores.end() || right == scores.end()) continue;
      all.push_back({left->first, right->first, whole->second, left->second, right->second});
    }
    std::stable_sort(all.begin() + static_cast<std::ptrdiff_t>(before), all.end(), [](const Way& a, const Way& b) {
      return std::pair(a.left_score, a.right_score) > std::pair(b.left_score, b.right_score);
    });
  }
  std::stable_sort(all.begin(), all.end(), [](const Way& a, const Way& b) { return a.score > b.score; });
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(all.size());
  for (const Way& way : all) merges.emplace_back(way.left, way.right);
  return merges;
}

std::unique_ptr<PreTokenizer> steps_of_split(const GgufVocabulary& v, const GgufSplit& split) {
  const std::string where = cat(v.where, ": tokenizer.ggml.pre");
  if (split.steps != nullptr) return read_pre_tokenizer(Json::parse(split.steps, where));
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  if (split.digits) steps.push_back(make_digits());
  for (const char* regex : split.regexes) steps.push_back(make_isolating_split(regex, where));
  const bool only_bytes = steps.empty();
  steps.push_back(make_byte_level(only_bytes && v.add_space_prefix.value_or(false), split.regexes.empty()));
  return only_bytes ? std::move(steps.front()) : make_pre_tokenizer_sequence(std::move(steps));
}

// How a byte-level vocabulary wants its text split.
void set_byte_level(const GgufVocabulary& v, Tokenizer::Parts& parts, BpeConfig& config) {
  std::string pre = v.pre;
  const bool qwen = v.architecture.rfind("qwen", 0) == 0;
  if (pre.empty() || pre == "default") pre = qwen ? "qwen2" : "gpt-2";
  const GgufSplit* split = find_gguf_split(pre);
  if (split == nullptr) {
    std::vector<std::string> known;
    for (const GgufSplit& one : gguf_splits()) known.insert(known.end(), one.names.begin(), one.names.end());
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("tokenizer.ggml.pre default or one of ", join(known), " in ", v.where),
                 .got = cat("'", pre, "'"),
                 .next = "this way of splitting is not implemented; use the model's tokenizer.json"});
  }
  if (split->nfc) parts.normalizer = make_form(NormalizationForm::kNfc);
  parts.pre_tokenizer = steps_of_split(v, *split);
  config.ignore_merges = split->ignores_merges;
  parts.decoder = make_byte_level_decoder();
}

void set_sentence_piece(const GgufVocabulary& v, Tokenizer::Parts& parts, BpeConfig& config) {
  const bool prefix = v.add_space_prefix.value_or(true);
  std::vector<std::unique_ptr<Normalizer>> normalizers;
  if (prefix) normalizers.push_back(make_prepend("\u2581"));
  normalizers.push_back(make_replace(Pattern(std::string(" ")), "\u2581"));
  parts.normalizer = make_normalizer_sequence(std::move(normalizers));
  std::vector<std::unique_ptr<Decoder>> decoders;
  decoders.push_back(make_byte_fallback_decoder());
  decoders.push_back(make_fuse_decoder());
  decoders.push_back(make_replace_decoder("\u2581", " "));
  if (prefix) decoders.push_back(make_strip_decoder(" ", 1, 0));
  parts.decoder = make_decoder_sequence(std::move(decoders));
  if (v.unk) config.unknown_token = v.tokens[static_cast<size_t>(*v.unk)];
  config.fuse_unknown = true;
  config.byte_fallback = true;
  if (config.merges.empty()) config.merges = merges_by_score(v);
}

std::unique_ptr<AddedTokens> added_tokens(const GgufVocabulary& v, const Model& model, const Normalizer* normalizer) {
  std::vector<AddedToken> added;
  std::vector<bool> special(v.tokens.size());
  for (size_t id = 0; id < v.tokens.size(); ++id) special[id] = type_of_token(v, id) == kControl;
  if (v.token_types.empty()) {
    for (const auto& id : {v.unk, v.bos, v.eos}) {
      if (id) special[static_cast<size_t>(*id)] = true;
    }
  }
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    const bool wanted = special[id] || type_of_token(v, id) == kUserDefined;
    // Of several tokens with the same string the last one is the one that can be reached.
    if (!wanted || v.tokens[id].empty() || model.vocabulary().find(v.tokens[id]) != static_cast<int32_t>(id)) continue;
    added.push_back({.id = static_cast<int64_t>(id), .content = v.tokens[id], .special = special[id]});
  }
  return std::make_unique<AddedTokens>(std::move(added), model.vocabulary(), normalizer,
                                       cat(v.where, ": tokenizer.ggml.tokens"));
}

}  // namespace

Tokenizer Tokenizer::from_vocabulary(const GgufVocabulary& v) {
  check(v);
  auto parts = std::make_shared<Parts>();
  BpeConfig config;
  config.where = cat(v.where, ": tokenizer.ggml");
  config.same = Vocabulary::SameString::kLastWins;
  for (size_t id = 0; id < v.tokens.size(); ++id)
    config.vocabulary.emplace_back(v.tokens[id], static_cast<int64_t>(id));
  config.merges = read_merges(v);
  if (v.model == "gpt2") {
    set_byte_level(v, *parts, config);
  } else if (v.model == "llama") {
    set_sentence_piece(v, *parts, config);
  } else {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("tokenizer.ggml.model gpt2 or llama in ", v.where),
                 .got = cat("'", v.model, "'"),
                 .next = "this model is not implemented; use the model's tokenizer.json"});
  }
  parts->model = std::make_unique<Bpe>(std::move(config));
  parts->added = added_tokens(v, *parts->model, parts->normalizer.get());
  parts->special = {.bos = v.bos, .eos = v.eos, .pad = v.pad, .unk = v.unk};

  Framing framing;
  const auto frame = [&](const std::optional<int64_t>& id, auto& side, const char* name) {
    if (!id) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("tokenizer.ggml.", name, "_token_id in ", v.where, ", which asks to add it"),
                   .got = "none",
                   .next = "fetch the file again"});
    }
    side.emplace_back(v.tokens[static_cast<size_t>(*id)], *id);
  };
  if (v.add_bos.value_or(v.model == "llama" && v.bos)) frame(v.bos, framing.before, "bos");
  if (v.add_eos.value_or(false)) frame(v.eos, framing.behind, "eos");
  if (!framing.before.empty() || !framing.behind.empty()) parts->post_processor = make_framing(framing);
  parts->finish();
  return Tokenizer(std::move(parts));
}

}  // namespace hotswap
