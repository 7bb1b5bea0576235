#include "hotswap/tokenizers/word_piece.h"

#include <algorithm>

#include "hotswap/tokenizers/unicode.h"
#include "hotswap/tokenizers/word_cache.h"

namespace hotswap::tokenizers {
namespace {

DoubleArray word_piece_trie(const Vocabulary& vocabulary, std::string_view prefix) {
  std::vector<std::pair<std::string_view, int32_t>> keys;
  for (int32_t id = 0; id < vocabulary.id_end(); ++id) {
    const std::string_view token = vocabulary.token(id);
    if (vocabulary.has(id) && token.substr(0, prefix.size()) == prefix) {
      keys.emplace_back(token.substr(prefix.size()), id);
    }
  }
  return DoubleArray(std::move(keys));
}

}  // namespace

class WordPiece::CachingScratch : public Scratch {
 public:
  WordCache cache;
};

WordPiece::WordPiece(WordPieceConfig config)
    : Model(Vocabulary(std::move(config.vocabulary), config.where + ".vocab")),
      unknown_token_(std::move(config.unknown_token)),
      where_(std::move(config.where)),
      max_characters_(static_cast<size_t>(config.max_characters)),
      first_(word_piece_trie(vocabulary(), "")),
      continuing_(word_piece_trie(vocabulary(), config.continuing_prefix)) {}

std::unique_ptr<Model::Scratch> WordPiece::make_scratch() const { return std::make_unique<CachingScratch>(); }

void WordPiece::encode(std::string_view word, bool, Scratch& scratch, std::vector<Symbol>& out) const {
  static_cast<CachingScratch&>(scratch).cache.encode(word, out, [&] { encode_new(word, out); });
}

void WordPiece::encode_new(std::string_view word, std::vector<Symbol>& out) const {
  const size_t begin = out.size();
  const auto characters = std::count_if(word.begin(), word.end(), [](char byte) { return !is_continuation(byte); });
  bool known = static_cast<size_t>(characters) <= max_characters_;
  for (size_t at = 0; known && at < word.size();) {
    Symbol longest{-1, 0};
    const DoubleArray& trie = at == 0 ? first_ : continuing_;
    trie.prefixes(word, at, [&](size_t size, int32_t id) { longest = {id, static_cast<uint32_t>(size)}; });
    known = longest.id >= 0;
    if (known) out.push_back(longest);
    at += longest.size;
  }
  if (known) return;
  out.resize(begin);
  out.push_back({id_of_unknown(unknown_token_, where_), static_cast<uint32_t>(word.size())});
}

}  // namespace hotswap::tokenizers
