// The "decoder" of tokenizer.json: Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace,
// BPEDecoder, WordPiece, CTC.
#pragma once

#include <memory>

#include "hotswap/base/json.h"

namespace hotswap::tokenizers {

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Tokens, step by step turned into parts of the text.
  virtual std::vector<std::string> apply(std::vector<std::string> tokens) const = 0;
  // For streaming. byte_runs: neighbouring tokens like <0xC3> are read together. trims_end: the end of the text
  // depends on nothing coming after it.
  virtual bool byte_runs() const { return false; }
  virtual bool trims_end() const { return false; }
};

std::unique_ptr<Decoder> read_decoder(const Json& json);

// <0xC3>: 0xC3, else -1.
int byte_of_fallback_token(std::string_view token);

// For tokenizers that are not read from JSON.
std::unique_ptr<Decoder> make_byte_level_decoder();
std::unique_ptr<Decoder> make_replace_decoder(std::string literal, std::string content);
std::unique_ptr<Decoder> make_byte_fallback_decoder();
std::unique_ptr<Decoder> make_fuse_decoder();
std::unique_ptr<Decoder> make_strip_decoder(std::string content, int64_t start, int64_t stop);
std::unique_ptr<Decoder> make_decoder_sequence(std::vector<std::unique_ptr<Decoder>> parts);

}  // namespace hotswap::tokenizers
