// Tokens that are recognised in the text itself, before anything is normalized or split ("added_tokens").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "hotswap/tokenizers/normalizer.h"
#include "hotswap/tokenizers/pre_tokenized_string.h"
#include "hotswap/tokenizers/vocabulary.h"

namespace hotswap::tokenizers {

struct AddedToken {
  int64_t id = -1;
  std::string content;
  bool single_word = false;  // only between non-word characters
  bool lstrip = false;       // takes the blanks before it
  bool rstrip = false;       // takes the blanks behind it
  bool normalized = false;   // looked for in the normalized text
  bool special = false;      // skipped by decode(skip_special_tokens)
};

// Finds the longest of many strings at a place.
class StringFinder {
 public:
  void add(std::string_view text, int32_t id, const std::string& where);
  bool empty() const { return nodes_ == 1; }
  // The leftmost and then longest string at or after `from`.
  struct Found {
    size_t begin, end;
    int32_t id;  // -1: nothing
  };
  Found find(std::string_view text, size_t from) const;

 private:
  std::vector<bool> first_ = std::vector<bool>(256);
  std::unordered_map<uint64_t, uint32_t> children_;  // node << 8 | byte
  std::unordered_map<uint32_t, int32_t> ends_;       // node -> id
  uint32_t nodes_ = 1;
};

class AddedTokens {
 public:
  // Ids must be those that the tokenizers library would give: the model's own, or the next free ones.
  AddedTokens(std::vector<AddedToken> tokens, const Vocabulary& model, const Normalizer* normalizer,
              const std::string& where);

  // Marks the tokens that stand in the input, normalizes the rest, marks those that stand in the normalized text.
  void apply(PreTokenizedString& pretokenized, const Normalizer* normalizer) const;

  const AddedToken* find(int64_t id) const;
  int64_t find(std::string_view content) const;  // the id, -1 when there is none
  // What decoding starts from: for a normalized token its normalized form.
  const std::string& decoded(int64_t id) const;
  bool is_special(const std::string& token) const { return special_.count(token) != 0; }
  size_t beyond_model() const { return beyond_model_; }  // tokens that the model does not have
  int64_t id_end() const { return id_end_; }

 private:
  void mark(PreTokenizedString& pretokenized, const StringFinder& finder) const;

  std::unordered_map<int64_t, AddedToken> tokens_;
  std::unordered_map<std::string, int64_t> ids_;
  std::unordered_map<int64_t, std::string> normalized_;
  std::unordered_set<std::string> special_;
  StringFinder in_input_, in_normalized_;
  size_t beyond_model_ = 0;
  int64_t id_end_ = 0;
};

}  // namespace hotswap::tokenizers
