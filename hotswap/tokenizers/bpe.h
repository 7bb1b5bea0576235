// The byte-pair encoding model ("model" of tokenizer.json, type BPE).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "hotswap/tokenizers/vocabulary.h"

namespace hotswap::tokenizers {

struct BpeConfig {
  std::vector<std::pair<std::string, int64_t>> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::optional<std::string> unknown_token;
  bool fuse_unknown = false;   // neighbouring unknown characters make one unknown token
  bool byte_fallback = false;  // an unknown character becomes tokens <0xC3>, <0xA9>
  bool ignore_merges = false;  // a word that is a token is that token
  Vocabulary::SameString same = Vocabulary::SameString::kRefused;
  std::string where;  // what errors call the model: "tokenizer.json: model"
};

// A token of a word.
struct Symbol {
  int32_t id;
  uint32_t size;  // bytes of the word
};

class Bpe {
 public:
  explicit Bpe(BpeConfig config);

  const Vocabulary& vocabulary() const { return vocabulary_; }
  bool has_byte_alphabet() const { return has_byte_alphabet_; }

  // What one thread needs while it encodes; its cache of words makes the next text faster.
  class Scratch;
  static std::shared_ptr<Scratch> make_scratch();

  // Appends the word's tokens. byte_level: the bytes stand for the characters of the byte-level alphabet.
  void encode(std::string_view word, bool byte_level, Scratch& scratch, std::vector<Symbol>& out) const;

 private:
  void encode_cached(std::string_view word, bool byte_level, Scratch& scratch, std::vector<Symbol>& out) const;
  void first_symbols(std::string_view word, std::vector<Symbol>& out) const;
  void merge(std::vector<Symbol>& symbols, size_t begin, Scratch& scratch) const;
  void merge_short(std::vector<Symbol>& symbols, size_t begin) const;
  void merge_long(std::vector<Symbol>& symbols, size_t begin, Scratch& scratch) const;
  int32_t character_id(char32_t c, std::string_view utf8) const;
  int32_t unknown_id() const;

  Vocabulary vocabulary_;
  MergeTable merges_;
  std::optional<std::string> unknown_token_;
  bool fuse_unknown_, byte_fallback_, ignore_merges_;
  std::string where_;

  std::vector<int32_t> byte_ids_;                            // of the byte-level alphabet, -1 where it lacks
  std::vector<int32_t> fallback_ids_;                        // of <0x00> to <0xFF>, -1 where it lacks
  std::vector<int32_t> character_ids_;                       // of the characters below 0x10000
  std::unordered_map<std::string, int32_t> words_of_bytes_;  // for ignore_merges: tokens as the bytes they stand for
  std::unordered_set<char32_t> before_blank_[2];             // what stands before ' ' and '▁' inside some token
  bool has_byte_alphabet_ = false;
};

}  // namespace hotswap::tokenizers
