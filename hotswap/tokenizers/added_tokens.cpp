#include "hotswap/tokenizers/added_tokens.h"

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/tokenizers/unicode.h"

namespace hotswap::tokenizers {
namespace {

constexpr size_t kMaxTokenBytes =
    1024;  // bytes of an added token: to look for it costs that much for each byte of text

}  // namespace

void StringFinder::add(std::string_view text, int32_t id, const std::string& where) {
  first_[static_cast<uint8_t>(text[0])] = true;
  uint32_t node = 0;
  for (const char c : text) {
    const auto [child, fresh] = children_.try_emplace(uint64_t{node} << 8 | static_cast<uint8_t>(c), nodes_);
    if (fresh) ++nodes_;
    node = child->second;
  }
  if (!ends_.emplace(node, id).second) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("added tokens that differ at ", where),
                 .got = cat("'", text, "' twice"),
                 .next = "remove one of the two entries"});
  }
}

StringFinder::Found StringFinder::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!first_[static_cast<uint8_t>(text[begin])]) continue;
    Found found{begin, begin, -1};
    uint32_t node = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      const auto child = children_.find(uint64_t{node} << 8 | static_cast<uint8_t>(text[at]));
      if (child == children_.end()) break;
      node = child->second;
      if (const auto end = ends_.find(node); end != ends_.end()) found = {begin, at + 1, end->second};
    }
    if (found.id >= 0) return found;
  }
  return {text.size(), text.size(), -1};
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const Vocabulary& model, const Normalizer* normalizer,
                         const std::string& where) {
  auto next_id = static_cast<int64_t>(model.count());
  for (AddedToken& token : tokens) {
    if (token.content.empty() || token.content.size() > kMaxTokenBytes) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("added tokens with a content of 1 to ", kMaxTokenBytes, " bytes at ", where),
                   .got = cat(token.content.size(), " bytes with id ", token.id),
                   .next = "give the entry a content of that length, or remove it"});
    }
    const int32_t of_model = model.find(token.content);
    const int64_t expected = of_model >= 0 ? of_model : next_id;
    if (token.id != expected || (of_model < 0 && model.has(expected)) || tokens_.count(token.id) != 0) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("added token '", token.content, "' with id ", expected,
                                 " (the model's own, else the next free one) at ", where),
                   .got = cat("id ", token.id, tokens_.count(token.id) != 0 ? " a second time" : ""),
                   .next = "give it that id: the tokenizers library would take no other"});
    }
    if (of_model < 0) {
      ++next_id;
      ++beyond_model_;
    }
    id_end_ = std::max(id_end_, token.id + 1);
    std::string normal = token.content;
    if (token.normalized && normalizer != nullptr) {
      PreTokenizedString pretokenized(normal);
      std::string text;
      pretokenized.rewrite([&](NormalizedString& piece) {
        normalizer->apply(piece);
        text = piece.bytes;
      });
      if (text.empty()) {
        throw Error({.kind = ErrorKind::kCorrupt,
                     .wanted = cat("added tokens that stay when normalized at ", where),
                     .got = cat("'", token.content, "', which becomes ''"),
                     .next = "set normalized to false in its entry, or remove it"});
      }
      if (text != normal) normalized_[token.id] = text;
      normal = std::move(text);
    }
    (token.normalized ? in_normalized_ : in_input_).add(normal, static_cast<int32_t>(token.id), where);
    if (token.special) special_.insert(token.content);
    ids_[token.content] = token.id;
    tokens_[token.id] = std::move(token);
  }
}

void AddedTokens::apply(PreTokenizedString& pretokenized, const Normalizer* normalizer) const {
  if (!in_input_.empty()) mark(pretokenized, in_input_);
  if (normalizer != nullptr) {
    const auto stays = [&](const Piece& piece) {
      return piece.id >= 0 || normalizer->leaves(pretokenized.view(piece));
    };
    if (!std::all_of(pretokenized.pieces().begin(), pretokenized.pieces().end(), stays)) {
      pretokenized.rewrite([&](NormalizedString& text) { normalizer->apply(text); });
    }
  }
  if (!in_normalized_.empty()) mark(pretokenized, in_normalized_);
}

void AddedTokens::mark(PreTokenizedString& pretokenized, const StringFinder& finder) const {
  pretokenized.cut([&](const Piece& piece, std::vector<Piece>& out) {
    const std::string_view text = pretokenized.view(piece);
    const auto push = [&](size_t begin, size_t end, int32_t id) {
      out.push_back({piece.begin + static_cast<uint32_t>(begin), piece.begin + static_cast<uint32_t>(end), id});
    };
    const auto char_before = [&](size_t at) {
      while (is_continuation(text[--at])) {
      }
      return at;
    };
    size_t done = 0;
    size_t from = 0;
    size_t blanks_end = 0;
    while (true) {
      const StringFinder::Found found = finder.find(text, from);
      if (found.id < 0) break;
      from = found.end;
      size_t begin = found.begin;
      size_t end = found.end;
      const AddedToken& token = tokens_.at(found.id);
      if (token.single_word) {
        const bool word_before = begin > 0 && is_word(code_point_at(text, char_before(begin)).value);
        const bool word_behind = end < text.size() && is_word(code_point_at(text, end).value);
        if (word_before || word_behind) continue;
      }
      if (token.lstrip) {
        while (begin > done && is_whitespace(code_point_at(text, char_before(begin)).value)) begin = char_before(begin);
        begin = std::max(begin, done);
      }
      if (token.rstrip) {
        end = std::max(end, blanks_end);  // a token of blanks may be found again inside them
        while (end < text.size() && is_whitespace(code_point_at(text, end).value)) end += code_point_at(text, end).size;
        blanks_end = end;
      }
      if (done < begin) push(done, begin, -1);
      push(begin, end, found.id);
      done = end;
    }
    if (done < text.size()) push(done, text.size(), -1);
  });
}

const AddedToken* AddedTokens::find(int64_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second;
}

int64_t AddedTokens::find(std::string_view content) const {
  const auto found = ids_.find(std::string(content));
  return found == ids_.end() ? -1 : found->second;
}

const std::string& AddedTokens::decoded(int64_t id) const {
  const auto found = normalized_.find(id);
  return found == normalized_.end() ? tokens_.at(id).content : found->second;
}

}  // namespace hotswap::tokenizers
