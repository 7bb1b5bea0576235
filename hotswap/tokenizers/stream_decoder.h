// Text of a generation while it goes on: each id gives the text that is now certain.
//
//   StreamDecoder stream(tokenizer);
//   for (const int64_t id : ids) std::cout << stream.push(id) << std::flush;
//   std::cout << stream.finish();
//
// All that push() and finish() give, put together, is what decode() gives for all ids; after `before`, what it gives
// beyond the text of those.
#pragma once

#include <span>

#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {

class StreamDecoder {
 public:
  // `before`: ids whose text is known already and goes on here. After it a decoder keeps a blank that it drops at the
  // beginning of a text.
  explicit StreamDecoder(Tokenizer tokenizer, bool skip_special_tokens = true, std::span<const int64_t> before = {});

  // Half a character, and a run of byte tokens, which are read together, wait for what comes next.
  std::string push(int64_t id);
  // What is left; the decoder then starts anew.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  bool byte_runs_, trims_end_;
  std::vector<int64_t> ids_;  // the last ones
  size_t given_ = 0;          // bytes of decode(ids_) that were given
};

}  // namespace hotswap
