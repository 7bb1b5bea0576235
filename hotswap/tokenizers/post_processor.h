// The "post_processor" of tokenizer.json: TemplateProcessing, ByteLevel, Sequence, BertProcessing,
// RobertaProcessing.
#pragma once

#include <functional>
#include <memory>

#include "hotswap/base/json.h"
#include "hotswap/tokenizers/encoding.h"

namespace hotswap::tokenizers {

class PostProcessor {
 public:
  virtual ~PostProcessor() = default;
  // One encoding per text comes in, their parts go out, in order.
  virtual void apply(std::vector<Encoding>& parts, bool add_special_tokens) const = 0;
  // How many special tokens apply() adds to one text, or to two.
  virtual int64_t added_tokens(size_t /*texts*/) const { return 0; }
};

// `token_of` gives the token of an id, for checks; none where there is no such id.
using TokenOf = std::function<std::optional<std::string>(int64_t)>;
std::unique_ptr<PostProcessor> read_post_processor(const Json& json, const TokenOf& token_of);

// For tokenizers that are not read from JSON: these tokens before and behind each text.
struct Framing {
  std::vector<std::pair<std::string, int64_t>> before, behind;
};
std::unique_ptr<PostProcessor> make_framing(const Framing& framing);

}  // namespace hotswap::tokenizers
