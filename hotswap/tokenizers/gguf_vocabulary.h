// What a GGUF file's metadata says about its tokenizer ("tokenizer.ggml.*"), as plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hotswap {

namespace gguf_token {  // types of tokens
inline constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;
}

struct GgufVocabulary {
  std::string where = "GGUF";        // what errors call it: the file's name
  std::string architecture;          // general.architecture; decides when `pre` is absent
  std::string model;                 // tokenizer.ggml.model: "gpt2" (byte-level) or "llama" (SentencePiece)
  std::string pre;                   // tokenizer.ggml.pre; "" when absent
  std::vector<std::string> tokens;   // by id
  std::vector<std::string> merges;   // "a b" by rank; for "llama" made from the scores when empty
  std::vector<float> scores;         // by id; may be empty
  std::vector<int32_t> token_types;  // by id: of gguf_token
  std::optional<int64_t> bos, eos, unk, pad;
  std::optional<bool> add_bos, add_eos, add_space_prefix;
};

}  // namespace hotswap
