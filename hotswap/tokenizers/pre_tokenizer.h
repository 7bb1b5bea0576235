// The "pre_tokenizer" of tokenizer.json: Sequence, ByteLevel, Split, Digits, Metaspace, Whitespace, WhitespaceSplit,
// Punctuation, BertPreTokenizer, UnicodeScripts, FixedLength, CharDelimiterSplit.
#pragma once

#include <memory>

#include "hotswap/base/json.h"
#include "hotswap/tokenizers/pre_tokenized_string.h"

namespace hotswap::tokenizers {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(PreTokenizedString& pretokenized) const = 0;
  // The last step may leave the byte-level alphabet to the model: true when it is such a step.
  virtual bool leave_bytes_to_model() { return false; }
};

std::unique_ptr<PreTokenizer> read_pre_tokenizer(const Json& json);

// For tokenizers that are not read from JSON.
std::unique_ptr<PreTokenizer> make_byte_level(bool add_prefix_space, bool use_regex);
std::unique_ptr<PreTokenizer> make_digits();  // each digit by itself
std::unique_ptr<PreTokenizer> make_isolating_split(const std::string& regex, const std::string& where);
std::unique_ptr<PreTokenizer> make_pre_tokenizer_sequence(std::vector<std::unique_ptr<PreTokenizer>> parts);

}  // namespace hotswap::tokenizers
