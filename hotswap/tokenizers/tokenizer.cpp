#include "hotswap/tokenizers/tokenizer.h"

#include "hotswap/base/error.h"
#include "hotswap/tokenizers/tokenizer_impl.h"
#include "hotswap/tokenizers/unicode.h"

namespace hotswap {
namespace {

using tokenizers::Piece;
using tokenizers::PreTokenizedString;
using tokenizers::Span;
using tokenizers::Symbol;

// From bytes to characters of one text.
class CharacterOffsets {
 public:
  explicit CharacterOffsets(std::string_view text) {
    ascii_ = true;
    for (const char c : text) ascii_ = ascii_ && static_cast<uint8_t>(c) < 0x80;
    if (ascii_) return;
    index_.resize(text.size() + 1);
    uint32_t count = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      if (!tokenizers::is_continuation(text[i])) ++count;
      index_[i] = count - 1;
    }
    index_[text.size()] = count;
  }
  std::pair<int64_t, int64_t> of(Span bytes) const {
    if (ascii_) return {bytes.begin, bytes.end};
    return {index_[bytes.begin], index_[bytes.end]};
  }

 private:
  bool ascii_;
  std::vector<uint32_t> index_;  // of the character around each byte
};

class Borrowed {
 public:
  explicit Borrowed(ScratchPool& pool) : pool_(pool), scratch_(pool.take()) {}
  ~Borrowed() { pool_.give_back(std::move(scratch_)); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  tokenizers::Bpe::Scratch& operator*() const { return *scratch_; }

 private:
  ScratchPool& pool_;
  std::shared_ptr<tokenizers::Bpe::Scratch> scratch_;
};

void append(Encoding& to, Encoding&& from) {
  const auto extend = [](auto& target, auto& source) {
    target.insert(target.end(), std::make_move_iterator(source.begin()), std::make_move_iterator(source.end()));
  };
  extend(to.ids, from.ids);
  extend(to.type_ids, from.type_ids);
  extend(to.tokens, from.tokens);
  extend(to.offsets, from.offsets);
}

}  // namespace

Encoding Tokenizer::encode_text(std::string_view text, bool ids_only) const {
  if (const size_t at = tokenizers::find_invalid_utf8(text); at != std::string_view::npos) {
    throw Error(
        {.wanted = "a text in UTF-8", .got = cat("other bytes from byte ", at, " on"), .next = "convert it first"});
  }
  PreTokenizedString pretokenized(text);
  parts_->added->apply(pretokenized, parts_->normalizer.get());
  if (parts_->pre_tokenizer) parts_->pre_tokenizer->apply(pretokenized);

  const Borrowed scratch(parts_->scratch);
  Encoding encoding;
  encoding.ids_only = ids_only;
  std::optional<CharacterOffsets> characters;
  if (!ids_only) characters.emplace(text);
  std::vector<Symbol> symbols;
  for (const Piece& piece : pretokenized.pieces()) {
    if (piece.id >= 0) {
      encoding.ids.push_back(piece.id);
      if (ids_only) continue;
      encoding.tokens.emplace_back(pretokenized.view(piece));
      encoding.offsets.push_back(characters->of(pretokenized.origin(piece.begin, piece.end)));
      continue;
    }
    symbols.clear();
    parts_->model->encode(pretokenized.view(piece), pretokenized.byte_level, *scratch, symbols);
    uint32_t begin = piece.begin;
    for (const Symbol& symbol : symbols) {
      encoding.ids.push_back(symbol.id);
      if (ids_only) continue;
      encoding.tokens.push_back(parts_->model->vocabulary().token(symbol.id));
      encoding.offsets.push_back(characters->of(pretokenized.origin(begin, begin + symbol.size)));
      begin += symbol.size;
    }
  }
  return encoding;
}

Encoding Tokenizer::encode_all(std::span<const std::string_view> texts, bool add_special_tokens, bool ids_only) const {
  std::vector<Encoding> encodings;
  for (const std::string_view text : texts) {
    encodings.push_back(encode_text(text, ids_only));
    encodings.back().type_ids.assign(encodings.back().ids.size(), static_cast<int64_t>(encodings.size()) - 1);
  }
  if (parts_->post_processor) parts_->post_processor->apply(encodings, add_special_tokens);
  if (encodings.size() == 1) return std::move(encodings[0]);
  Encoding all;
  all.ids_only = ids_only;
  for (Encoding& part : encodings) append(all, std::move(part));
  return all;
}

Encoding Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  return encode_all({&text, 1}, add_special_tokens, false);
}

Encoding Tokenizer::encode_pair(std::string_view first, std::string_view second, bool add_special_tokens) const {
  const std::string_view texts[2] = {first, second};
  return encode_all(texts, add_special_tokens, false);
}

std::vector<int64_t> Tokenizer::ids(std::string_view text, bool add_special_tokens) const {
  return std::move(encode_all({&text, 1}, add_special_tokens, true).ids);
}

std::string Tokenizer::decode(std::span<const int64_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int64_t id : ids) {
    if (id < 0) {
      throw Error(
          {.wanted = "token ids of 0 or more", .got = cat(id), .next = "remove what is no token before decoding"});
    }
    const std::string* token = parts_->token(id);
    if (token == nullptr || (skip_special_tokens && parts_->added->is_special(*token))) continue;
    tokens.push_back(*token);
  }
  if (!parts_->decoder) return join(tokens, " ");
  return join(parts_->decoder->apply(std::move(tokens)), "");
}

std::optional<int64_t> Tokenizer::token_to_id(std::string_view token) const {
  int64_t id = parts_->added->find(token);
  if (id < 0) id = parts_->model->vocabulary().find(token);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::optional<std::string> Tokenizer::id_to_token(int64_t id) const {
  const std::string* token = parts_->token(id);
  return token == nullptr ? std::nullopt : std::optional(*token);
}

bool Tokenizer::is_special(int64_t id) const {
  const std::string* token = parts_->token(id);
  return token != nullptr && parts_->added->is_special(*token);
}

size_t Tokenizer::vocab_size() const { return parts_->model->vocabulary().count() + parts_->added->beyond_model(); }

const SpecialIds& Tokenizer::special_ids() const { return parts_->special; }

}  // namespace hotswap
