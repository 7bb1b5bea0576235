// The model of the most probable path ("model" of tokenizer.json, type Unigram; SentencePiece's default).
#pragma once

#include <optional>

#include "hotswap/tokenizers/double_array.h"
#include "hotswap/tokenizers/model.h"

namespace hotswap::tokenizers {

struct UnigramConfig {
  std::vector<std::pair<std::string, double>> pieces;  // with their scores, by id
  std::optional<int64_t> unknown_id;
  bool byte_fallback = false;  // unknown text becomes tokens <0xC3>, <0xA9>
  std::string where;           // what errors call the model: "tokenizer.json: model"
};

class Unigram : public Model {
 public:
  explicit Unigram(UnigramConfig config);

  std::unique_ptr<Scratch> make_scratch() const override;
  void encode(std::string_view word, bool byte_level, Scratch& scratch, std::vector<Symbol>& out) const override;
  // An unknown token is spelled as its text.
  std::string spelled(int32_t id, std::string_view bytes) const override;

 private:
  class PathScratch;
  void encode_new(std::string_view word, PathScratch& scratch, std::vector<Symbol>& out) const;
  void find_best_path(std::string_view word, PathScratch& scratch) const;
  void append_unknown(std::string_view text, std::vector<Symbol>& out) const;
  [[noreturn]] void fail_without_unknown() const;

  std::vector<double> scores_;  // by id
  double unknown_score_;
  int32_t unknown_id_;  // -1: none
  bool byte_fallback_;
  std::vector<int32_t> fallback_ids_;  // of <0x00> to <0xFF>, -1 where it lacks
  std::string where_;
  DoubleArray trie_;
};

}  // namespace hotswap::tokenizers
