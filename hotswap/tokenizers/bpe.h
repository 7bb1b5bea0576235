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

#include "hotswap/tokenizers/model.h"

namespace hotswap::tokenizers {

struct BpeConfig {
  std::vector<std::pair<std::string, int64_t>> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::optional<std::string> unknown_token;
  bool fuse_unknown = false;      // neighbouring unknown characters make one unknown token
  bool byte_fallback = false;     // an unknown character becomes tokens <0xC3>, <0xA9>
  bool ignore_merges = false;     // a word that is a token is that token
  std::string continuing_prefix;  // before every character of a word but the first; "" for none
  std::string word_suffix;        // after a word's last character, as "</w>"; "" for none
  Vocabulary::SameString same = Vocabulary::SameString::kRefused;
  std::string where;  // what errors call the model: "tokenizer.json: model"
};

class Bpe : public Model {
 public:
  explicit Bpe(BpeConfig config);

  std::unique_ptr<Scratch> make_scratch() const override;
  void encode(std::string_view word, bool byte_level, Scratch& scratch, std::vector<Symbol>& out) const override;
  // The whole byte-level alphabet is in the vocabulary.
  bool reads_bytes() const override { return reads_bytes_; }

 private:
  class MergeScratch;
  void read_merges(const BpeConfig& config);
  void index_tokens();
  void encode_cached(std::string_view word, bool byte_level, MergeScratch& scratch, std::vector<Symbol>& out) const;
  void first_symbols(std::string_view word, std::vector<Symbol>& out) const;
  void merge(std::vector<Symbol>& symbols, size_t begin, MergeScratch& scratch) const;
  void merge_short(std::vector<Symbol>& symbols, size_t begin) const;
  void merge_long(std::vector<Symbol>& symbols, size_t begin, MergeScratch& scratch) const;
  int32_t character_id(char32_t c, std::string_view utf8) const;
  int32_t affixed_id(std::string_view character, bool first, bool last) const;

  MergeTable merges_;
  std::optional<std::string> unknown_token_;
  bool fuse_unknown_, byte_fallback_, ignore_merges_;
  std::string continuing_prefix_, word_suffix_;
  std::string where_;

  std::vector<int32_t> byte_ids_;                            // of the byte-level alphabet, -1 where it lacks
  std::vector<int32_t> fallback_ids_;                        // of <0x00> to <0xFF>, -1 where it lacks
  std::vector<int32_t> character_ids_;                       // of the characters below 0x10000
  std::unordered_map<std::string, int32_t> words_of_bytes_;  // for ignore_merges: tokens as the bytes they stand for
  std::unordered_set<char32_t> before_blank_[2];             // what stands before ' ' and '▁' inside some token
  bool reads_bytes_ = false;
};

}  // namespace hotswap::tokenizers
