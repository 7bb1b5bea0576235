// A text on its way to tokens: what normalizers and pre-tokenizers have made of it so far, cut into pieces, and for
// every byte the part of the input that it came from, so that tokens can tell their offsets.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "hotswap/tokenizers/regex.h"

namespace hotswap::tokenizers {

struct Span {
  uint32_t begin, end;  // bytes of the input
};

struct Piece {
  uint32_t begin, end;  // bytes of the pre-tokenized text
  int32_t id = -1;      // of an added token; such a piece is finished
};

// A code point that replaces others. change 0: it stands for the next old code point; -n: and n more go with it;
// +1: it is inserted and belongs to the code point before.
struct NewPoint {
  char32_t value;
  int change;
};

// The bytes of one piece, each with its origin, while they are rewritten.
class NormalizedString {
 public:
  std::string bytes;
  std::vector<Span> origin;  // one per byte

  void replace_found(const std::vector<Stretch>& stretches, std::string_view content);
  void prepend(std::string_view content);  // nothing to do on an empty piece
  void rewrite(const std::vector<NewPoint>& points);
  void keep(size_t begin, size_t end);
};

class PreTokenizedString {
 public:
  explicit PreTokenizedString(std::string_view input);

  std::string_view view(const Piece& piece) const { return text_.substr(piece.begin, piece.end - piece.begin); }
  const std::vector<Piece>& pieces() const { return pieces_; }
  // The part of the input that [begin, end) of this text, not empty, came from.
  Span origin(uint32_t begin, uint32_t end) const;

  // For each unfinished piece `cut` appends what it becomes; empty parts vanish.
  void cut(const std::function<void(const Piece&, std::vector<Piece>& out)>& cut);
  // Each unfinished piece is rewritten by `change`; a piece that gets empty vanishes.
  void rewrite(const std::function<void(NormalizedString&)>& change);

  // Each byte stands for its character of the byte-level alphabet: the model reads bytes, the text stays as it is.
  bool byte_level = false;

 private:
  Span origin_of(uint32_t at) const;

  std::string_view text_;  // the input, or owned_
  std::string owned_;
  std::vector<Span> origin_;  // empty as long as the text is the input
  std::vector<Piece> pieces_;
};

}  // namespace hotswap::tokenizers
