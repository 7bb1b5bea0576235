// The model of a tokenizer: what makes tokens of one word, a piece of the pre-tokenized text, into tokens.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hotswap/tokenizers/vocabulary.h"

namespace hotswap::tokenizers {

// A token of a word. The symbols of a word follow each other; one of size 0 covers the same bytes as the one before it.
struct Symbol {
  int32_t id;
  uint32_t size;  // bytes of the word
};

class Model {
 public:
  virtual ~Model() = default;

  const Vocabulary& vocabulary() const { return vocabulary_; }

  // What one thread needs while it encodes; its cache of words makes the next text faster.
  class Scratch {
   public:
    virtual ~Scratch() = default;
  };
  virtual std::unique_ptr<Scratch> make_scratch() const = 0;

  // Appends the word's tokens. byte_level, only where reads_bytes(): the bytes stand for the characters of the
  // byte-level alphabet.
  virtual void encode(std::string_view word, bool byte_level, Scratch& scratch, std::vector<Symbol>& out) const = 0;
  virtual bool reads_bytes() const { return false; }

  // What Encoding::tokens has for a symbol that covers these bytes.
  virtual std::string spelled(int32_t id, std::string_view /*bytes*/) const { return vocabulary_.token(id); }

 protected:
  explicit Model(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}

  // The id of the unk_token; Error where the vocabulary lacks it.
  int32_t id_of_unknown(const std::string& unknown_token, const std::string& where) const;

 private:
  Vocabulary vocabulary_;
};

}  // namespace hotswap::tokenizers
