// How byte-level vocabularies of GGUF files cut a text into words: what a name in tokenizer.ggml.pre stands for.
#pragma once

#include <string>
#include <vector>

namespace hotswap::tokenizers {

inline constexpr const char* kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr const char* kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct GgufSplit {
  std::vector<const char*> names;    // the first one is the most usual
  std::vector<const char*> regexes;  // one after the other; none: GPT-2's own
  bool nfc = false;                  // the text is normalized before
  bool digits = false;               // each digit is a word of its own
  bool ignores_merges = false;       // a word that is a token is not merged
  const char* steps = nullptr;       // instead of the above, as tokenizer.json writes a pre_tokenizer
};

const std::vector<GgufSplit>& gguf_splits();
// By name; null: none.
const GgufSplit* find_gguf_split(const std::string& name);

}  // namespace hotswap::tokenizers
