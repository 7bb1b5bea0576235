#include "hotswap/tokenizers/unigram.h"

#include <algorithm>
#include <limits>

#include "hotswap/base/error.h"
#include "hotswap/tokenizers/unicode.h"
#include "hotswap/tokenizers/word_cache.h"

namespace hotswap::tokenizers {
namespace {

constexpr double kUnknownPenalty = 10.0;  // below the worst score

Vocabulary vocabulary_of(std::vector<std::pair<std::string, double>>& pieces, const std::string& where) {
  std::vector<std::pair<std::string, int64_t>> tokens;
  tokens.reserve(pieces.size());
  for (auto& [piece, score] : pieces) tokens.emplace_back(std::move(piece), static_cast<int64_t>(tokens.size()));
  return Vocabulary(std::move(tokens), where + ".vocab", Vocabulary::SameString::kLastWins);
}

DoubleArray trie_of(const Vocabulary& vocabulary) {
  std::vector<std::pair<std::string_view, int32_t>> keys;
  for (int32_t id = 0; id < vocabulary.id_end(); ++id) keys.emplace_back(vocabulary.token(id), id);
  return DoubleArray(std::move(keys));
}

// The best way to the end of each prefix of the word.
struct Step {
  double score = 0;
  int32_t id = 0;
  uint32_t size = 0;  // bytes of the last token; 0: no way leads here yet
};

}  // namespace

class Unigram::PathScratch : public Scratch {
 public:
  WordCache cache;
  std::vector<Step> steps;  // by the prefix's size
  std::vector<Symbol> symbols_backwards;
};

Unigram::Unigram(UnigramConfig config)
    : Model(vocabulary_of(config.pieces, config.where)),
      unknown_score_(std::numeric_limits<double>::infinity()),
      unknown_id_(static_cast<int32_t>(config.unknown_id.value_or(-1))),
      byte_fallback_(config.byte_fallback),
      fallback_ids_(byte_fallback_ids(vocabulary())),
      where_(std::move(config.where)),
      trie_(trie_of(vocabulary())) {
  if (config.unknown_id && !vocabulary().has(*config.unknown_id)) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("unk_id of one of the ", config.pieces.size(), " pieces at ", where_),
                 .got = cat(*config.unknown_id),
                 .next = "set unk_id to the index of the unknown piece"});
  }
  for (const auto& [piece, score] : config.pieces) {
    scores_.push_back(score);
    unknown_score_ = std::min(unknown_score_, score);
  }
  unknown_score_ -= kUnknownPenalty;
}

std::unique_ptr<Model::Scratch> Unigram::make_scratch() const { return std::make_unique<PathScratch>(); }

void Unigram::encode(std::string_view word, bool, Scratch& scratch, std::vector<Symbol>& out) const {
  auto& path = static_cast<PathScratch&>(scratch);
  path.cache.encode(word, out, [&] { encode_new(word, path, out); });
}

// Viterbi's algorithm. Of ways with equal scores the one found first stays: the one whose last token is longest.
void Unigram::find_best_path(std::string_view word, PathScratch& scratch) const {
  auto& steps = scratch.steps;
  steps.assign(word.size() + 1, Step{});
  for (size_t at = 0; at < word.size();) {
    const double score = steps[at].score;
    const auto propose = [&](size_t size, int32_t id, double with_token) {
      Step& step = steps[at + size];
      if (step.size != 0 && with_token <= step.score) return;
      if (id < 0) fail_without_unknown();
      step = {with_token, id, static_cast<uint32_t>(size)};
    };
    const size_t character = code_point_at(word, at).size;
    bool has_character = false;
    trie_.prefixes(word, at, [&](size_t size, int32_t id) {
      has_character = has_character || size == character;
      propose(size, id, scores_[static_cast<size_t>(id)] + score);
    });
    if (!has_character) propose(character, unknown_id_, unknown_score_ + score);
    at += character;
  }
}

void Unigram::encode_new(std::string_view word, PathScratch& scratch, std::vector<Symbol>& out) const {
  find_best_path(word, scratch);
  auto& symbols = scratch.symbols_backwards;
  symbols.clear();
  for (size_t end = word.size(); end > 0; end -= scratch.steps[end].size) {
    const Step& step = scratch.steps[end];
    const bool joins = step.id == unknown_id_ && !symbols.empty() && symbols.back().id == unknown_id_;
    if (joins) {
      symbols.back().size += step.size;  // a run of unknown tokens is one
    } else {
      symbols.push_back({step.id, step.size});
    }
  }
  size_t at = 0;
  for (auto symbol = symbols.rbegin(); symbol != symbols.rend(); ++symbol) {
    if (symbol->id == unknown_id_) {
      append_unknown(word.substr(at, symbol->size), out);
    } else {
      out.push_back(*symbol);
    }
    at += symbol->size;
  }
}

// The text of a run of unknown tokens may itself be a token.
void Unigram::append_unknown(std::string_view text, std::vector<Symbol>& out) const {
  const auto size = static_cast<uint32_t>(text.size());
  if (const int32_t id = vocabulary().find(text); id >= 0) return out.push_back({id, size});
  const auto has_fallback = [&](char byte) { return fallback_ids_[static_cast<uint8_t>(byte)] >= 0; };
  if (byte_fallback_ && std::all_of(text.begin(), text.end(), has_fallback)) {
    for (size_t i = 0; i < text.size(); ++i) {
      out.push_back({fallback_ids_[static_cast<uint8_t>(text[i])], i == 0 ? size : 0});  // each covers the whole run
    }
    return;
  }
  out.push_back({unknown_id_, size});
}

void Unigram::fail_without_unknown() const {
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("an unk_id at ", where_, ", for a text with unknown characters"),
               .got = "none",
               .next = "set unk_id to the index of the unknown piece"});
}

std::string Unigram::spelled(int32_t id, std::string_view bytes) const {
  return id == unknown_id_ ? std::string(bytes) : vocabulary().token(id);
}

}  // namespace hotswap::tokenizers
