#include "hotswap/tokenizers/tokenizer.h"

#include "hotswap/base/error.h"
#include "hotswap/tokenizers/parallel_for.h"
#include "hotswap/tokenizers/tokenizer_impl.h"
#include "hotswap/tokenizers/truncation.h"
#include "hotswap/tokenizers/unicode.h"

namespace hotswap {
namespace {

using tokenizers::Piece;
using tokenizers::PostProcessor;
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

void append(Encoding& to, Encoding&& from) {
  const auto extend = [](auto& target, auto& source) {
    target.insert(target.end(), std::make_move_iterator(source.begin()), std::make_move_iterator(source.end()));
  };
  extend(to.ids, from.ids);
  extend(to.type_ids, from.type_ids);
  extend(to.tokens, from.tokens);
  extend(to.offsets, from.offsets);
}

// The texts' encodings with what the post-processor adds, as one.
Encoding joined(std::vector<Encoding> texts, const PostProcessor* post_processor, bool add_special_tokens) {
  if (post_processor != nullptr) post_processor->apply(texts, add_special_tokens);
  if (texts.size() == 1) return std::move(texts[0]);
  Encoding all;
  all.ids_only = !texts.empty() && texts[0].ids_only;
  for (Encoding& part : texts) append(all, std::move(part));
  return all;
}

}  // namespace

class Tokenizer::Scratch {
 public:
  explicit Scratch(const Parts& parts) : pool_(parts.scratch), scratch_(pool_.take(*parts.model)) {}
  ~Scratch() { pool_.give_back(std::move(scratch_)); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  tokenizers::Model::Scratch& operator*() const { return *scratch_; }

 private:
  ScratchPool& pool_;
  std::unique_ptr<tokenizers::Model::Scratch> scratch_;
};

Encoding Tokenizer::encode_text(std::string_view text, bool ids_only, const Scratch& scratch) const {
  if (const size_t at = tokenizers::find_invalid_utf8(text); at != std::string_view::npos) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a text in UTF-8",
                 .got = cat("other bytes from byte ", at, " on"),
                 .next = "convert it first"});
  }
  PreTokenizedString pretokenized(text);
  parts_->added->apply(pretokenized, parts_->normalizer.get());
  if (parts_->pre_tokenizer) parts_->pre_tokenizer->apply(pretokenized);

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
    Piece covered{};  // by the symbol
    for (const Symbol& symbol : symbols) {
      encoding.ids.push_back(symbol.id);
      if (ids_only) continue;
      if (symbol.size > 0) {
        covered = {begin, begin + symbol.size, symbol.id};
        begin += symbol.size;
      }
      encoding.tokens.push_back(parts_->model->spelled(symbol.id, pretokenized.view(covered)));
      encoding.offsets.push_back(characters->of(pretokenized.origin(covered.begin, covered.end)));
    }
  }
  return encoding;
}

Encoding Tokenizer::encode_unpadded(Texts texts, const EncodeOptions& options, const Scratch& scratch) const {
  const PostProcessor* const post_processor = parts_->post_processor.get();
  std::vector<Encoding> encodings;
  for (const std::string_view text : texts) {
    encodings.push_back(encode_text(text, options.ids_only, scratch));
    encodings.back().type_ids.assign(encodings.back().ids.size(), static_cast<int64_t>(encodings.size()) - 1);
  }
  std::vector<std::vector<Encoding>> cut_off(texts.size());
  if (options.truncation) {
    const bool adds = options.add_special_tokens && post_processor != nullptr;
    tokenizers::truncate(encodings, *options.truncation, adds ? post_processor->added_tokens(texts.size()) : 0);
    for (size_t i = 0; i < texts.size(); ++i) cut_off[i] = std::move(encodings[i].overflowing);
    for (Encoding& encoding : encodings) encoding.overflowing.clear();
  }
  // Of a pair every part of the one goes with every part of the other.
  std::vector<Encoding> overflowing;
  const auto put = [&](std::vector<Encoding> parts) {
    overflowing.push_back(joined(std::move(parts), post_processor, options.add_special_tokens));
  };
  for (const Encoding& first : cut_off[0]) {
    if (texts.size() == 1) {
      put({first});
      continue;
    }
    put({first, encodings[1]});
    for (const Encoding& second : cut_off[1]) put({first, second});
  }
  for (size_t i = 0; texts.size() == 2 && i < cut_off[1].size(); ++i) put({encodings[0], cut_off[1][i]});
  Encoding all = joined(std::move(encodings), post_processor, options.add_special_tokens);
  all.overflowing = std::move(overflowing);
  return all;
}

Encoding Tokenizer::encode_padded(Texts texts, const EncodeOptions& options) const {
  const Scratch scratch(*parts_);
  Encoding encoding = encode_unpadded(texts, options, scratch);
  if (options.padding) tokenizers::pad({&encoding, 1}, *options.padding);
  return encoding;
}

Encoding Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  return encode_padded({&text, 1}, options);
}

Encoding Tokenizer::encode_pair(std::string_view first, std::string_view second, const EncodeOptions& options) const {
  const std::string_view texts[2] = {first, second};
  return encode_padded(texts, options);
}

Encoding Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  return encode(text, EncodeOptions{.add_special_tokens = add_special_tokens});
}

Encoding Tokenizer::encode_pair(std::string_view first, std::string_view second, bool add_special_tokens) const {
  return encode_pair(first, second, EncodeOptions{.add_special_tokens = add_special_tokens});
}

std::vector<int64_t> Tokenizer::ids(std::string_view text, bool add_special_tokens) const {
  return std::move(encode(text, {.add_special_tokens = add_special_tokens, .ids_only = true}).ids);
}

std::vector<Encoding> Tokenizer::encode_many(size_t count, const EncodeOne& encode_one,
                                             const EncodeOptions& options) const {
  std::vector<Encoding> batch(count);
  // A thread keeps its cache of words: borrowed text by text, caches would wander from one core's memory to another's.
  tokenizers::parallel_for(count, options.threads, [&] {
    return [&, scratch = Scratch(*parts_)](size_t i) { batch[i] = encode_one(i, scratch); };
  });
  if (options.padding) tokenizers::pad(batch, *options.padding);
  return batch;
}

std::vector<Encoding> Tokenizer::encode_batch(std::span<const std::string_view> texts,
                                              const EncodeOptions& options) const {
  return encode_many(
      texts.size(),
      [&](size_t i, const Scratch& scratch) {
        return encode_unpadded({&texts[i], 1}, options, scratch);
      },
      options);
}

std::vector<Encoding> Tokenizer::encode_batch(std::span<const TextPair> pairs, const EncodeOptions& options) const {
  const auto encode_one = [&](size_t i, const Scratch& scratch) {
    const std::string_view texts[2] = {pairs[i].first, pairs[i].second};
    return encode_unpadded(texts, options, scratch);
  };
  return encode_many(pairs.size(), encode_one, options);
}

std::string Tokenizer::decode(std::span<const int64_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int64_t id : ids) {
    if (id < 0) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = "token ids of 0 or more",
                   .got = cat(id),
                   .next = "remove negative ids, such as the label -100, before decoding"});
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

const std::optional<Truncation>& Tokenizer::truncation() const { return parts_->truncation; }
const std::optional<Padding>& Tokenizer::padding() const { return parts_->padding; }
const SpecialIds& Tokenizer::special_ids() const { return parts_->special; }

}  // namespace hotswap
