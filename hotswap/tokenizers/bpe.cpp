#include "hotswap/tokenizers/bpe.h"

#include <algorithm>
#include <limits>

#include "hotswap/base/error.h"
#include "hotswap/tokenizers/byte_level.h"
#include "hotswap/tokenizers/unicode.h"
#include "hotswap/tokenizers/word_cache.h"

namespace hotswap::tokenizers {
namespace {

constexpr size_t kShort = 32;  // symbols up to which a plain search beats a heap
constexpr char32_t kBlanks[2] = {U' ', U'\u2581'};

}  // namespace

class Bpe::MergeScratch : public Scratch {
 public:
  struct Link {
    int32_t previous, next;
  };
  WordCache cache;
  std::vector<Link> links;      // of merge_long
  std::vector<uint64_t> queue;  // of merge_long: rank and index, a heap with the smallest on top
};

std::unique_ptr<Model::Scratch> Bpe::make_scratch() const { return std::make_unique<MergeScratch>(); }

Bpe::Bpe(BpeConfig config)
    : Model(Vocabulary(std::move(config.vocabulary), config.where + ".vocab", config.same)),
      merges_(config.merges.size()),
      unknown_token_(std::move(config.unknown_token)),
      fuse_unknown_(config.fuse_unknown),
      byte_fallback_(config.byte_fallback),
      ignore_merges_(config.ignore_merges),
      continuing_prefix_(std::move(config.continuing_prefix)),
      word_suffix_(std::move(config.word_suffix)),
      where_(std::move(config.where)),
      fallback_ids_(byte_fallback_ids(vocabulary())) {
  const bool affixes = !continuing_prefix_.empty() || !word_suffix_.empty();
  if (affixes && byte_fallback_) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("byte_fallback without continuing_subword_prefix and end_of_word_suffix at ", where_),
                 .got = "both",
                 .next = "the library's offsets would not be those of the text; remove one from the file"});
  }
  read_merges(config);
  reads_bytes_ = !affixes;
  for (const std::string& character : byte_characters()) {
    byte_ids_.push_back(vocabulary().find(character));
    reads_bytes_ = reads_bytes_ && byte_ids_.back() >= 0;
  }
  index_tokens();
}

void Bpe::read_merges(const BpeConfig& config) {
  const auto known = [&](const std::string& token, size_t rank) {
    const int32_t id = vocabulary().find(token);
    if (id < 0) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("merges of tokens of the vocabulary at ", where_, ".merges"),
                   .got = cat("'", token, "' in merge ", rank, " ('", config.merges[rank].first, "' '",
                              config.merges[rank].second, "')"),
                   .next = "remove that merge, or add the token to the vocabulary"});
    }
    return id;
  };
  for (size_t rank = 0; rank < config.merges.size(); ++rank) {
    const auto& [left, right] = config.merges[rank];
    if (right.size() < continuing_prefix_.size()) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("second halves that begin with '", continuing_prefix_, "' at ", where_, ".merges"),
                   .got = cat("'", right, "' in merge ", rank),
                   .next = "remove that merge, or let its second half begin so"});
    }
    const int32_t left_id = known(left, rank);
    const int32_t right_id = known(right, rank);
    const int32_t merged_id = known(left + right.substr(continuing_prefix_.size()), rank);
    merges_.set(left_id, right_id, {static_cast<uint32_t>(rank), merged_id});
  }
}

void Bpe::index_tokens() {
  character_ids_.assign(0x10000, -1);
  for (int32_t id = 0; id < vocabulary().id_end(); ++id) {
    const std::string& token = vocabulary().token(id);
    if (token.empty() || vocabulary().find(token) != id) continue;
    const CodePoint first = code_point_at(token, 0);
    if (first.size == token.size() && first.value < 0x10000) character_ids_[first.value] = id;
    char32_t previous = first.value;
    for (size_t at = first.size; at < token.size();) {
      const CodePoint point = code_point_at(token, at);
      for (size_t i = 0; i < 2; ++i) {
        if (point.value == kBlanks[i]) before_blank_[i].insert(previous);
      }
      previous = point.value;
      at += point.size;
    }
    if (!ignore_merges_) continue;
    if (auto bytes = bytes_of_token(token)) words_of_bytes_.emplace(std::move(*bytes), id);
  }
}

int32_t Bpe::character_id(char32_t c, std::string_view utf8) const {
  return c < 0x10000 ? character_ids_[c] : vocabulary().find(utf8);
}

// The id of a character with what its position in the word adds to it.
int32_t Bpe::affixed_id(std::string_view character, bool first, bool last) const {
  std::string token;
  if (!first) token += continuing_prefix_;
  token += character;
  if (last) token += word_suffix_;
  return vocabulary().find(token);
}

void Bpe::encode(std::string_view word, bool byte_level, Scratch& any, std::vector<Symbol>& out) const {
  auto& scratch = static_cast<MergeScratch&>(any);
  if (ignore_merges_) {
    int32_t id = -1;
    if (!byte_level) {
      id = vocabulary().find(word);
    } else if (const auto found = words_of_bytes_.find(std::string(word)); found != words_of_bytes_.end()) {
      id = found->second;
    }
    if (id >= 0) return out.push_back({id, static_cast<uint32_t>(word.size())});
  }
  if (byte_level) return encode_cached(word, true, scratch, out);
  if (!continuing_prefix_.empty() || !word_suffix_.empty()) return encode_cached(word, false, scratch, out);

  // Tokenizers in SentencePiece's way have one long word. No merge crosses a place between two known characters that
  // no token has side by side, so the word may be cut there without any change of the outcome; blanks are such places.
  size_t begin = 0;
  char32_t previous = 0;
  bool previous_known = false;
  for (size_t at = 0; at < word.size();) {
    const CodePoint point = code_point_at(word, at);
    const bool known = character_id(point.value, word.substr(at, point.size)) >= 0;
    for (size_t i = 0; i < 2; ++i) {
      if (point.value != kBlanks[i] || !known || !previous_known || before_blank_[i].count(previous) != 0) continue;
      encode_cached(word.substr(begin, at - begin), false, scratch, out);
      begin = at;
    }
    previous = point.value;
    previous_known = known;
    at += point.size;
  }
  encode_cached(word.substr(begin), false, scratch, out);
}

void Bpe::encode_cached(std::string_view word, bool byte_level, MergeScratch& scratch, std::vector<Symbol>& out) const {
  scratch.cache.encode(word, out, [&] {
    const size_t begin = out.size();
    if (byte_level) {
      for (const char byte : word) out.push_back({byte_ids_[static_cast<uint8_t>(byte)], 1});
    } else {
      first_symbols(word, out);
    }
    merge(out, begin, scratch);
  });
}

void Bpe::first_symbols(std::string_view word, std::vector<Symbol>& out) const {
  Symbol unknown{-1, 0};  // waits for more of its kind
  const auto flush = [&] {
    if (unknown.id >= 0) out.push_back(unknown);
    unknown = {-1, 0};
  };
  const bool affixes = !continuing_prefix_.empty() || !word_suffix_.empty();
  for (size_t at = 0; at < word.size();) {
    const CodePoint point = code_point_at(word, at);
    const std::string_view bytes = word.substr(at, point.size);
    const bool first = at == 0;
    at += point.size;
    const int32_t id = affixes ? affixed_id(bytes, first, at == word.size()) : character_id(point.value, bytes);
    if (id >= 0) {
      flush();
      out.push_back({id, point.size});
      continue;
    }
    const auto has_fallback = [&](char byte) { return fallback_ids_[static_cast<uint8_t>(byte)] >= 0; };
    if (byte_fallback_ && std::all_of(bytes.begin(), bytes.end(), has_fallback)) {
      for (const char byte : bytes) out.push_back({fallback_ids_[static_cast<uint8_t>(byte)], 1});
      continue;
    }
    if (!unknown_token_) continue;  // the character is lost, as in the library
    if (unknown.id >= 0 && fuse_unknown_) {
      unknown.size += point.size;
    } else {
      flush();
      unknown = {id_of_unknown(*unknown_token_, where_), point.size};
    }
  }
  flush();
}

void Bpe::merge(std::vector<Symbol>& symbols, size_t begin, MergeScratch& scratch) const {
  const size_t count = symbols.size() - begin;
  if (count < 2) return;
  count <= kShort ? merge_short(symbols, begin) : merge_long(symbols, begin, scratch);
}

// Again and again the pair of the lowest rank, of equals the leftmost.
void Bpe::merge_short(std::vector<Symbol>& symbols, size_t begin) const {
  constexpr Merge kNone{std::numeric_limits<uint32_t>::max(), -1};
  Merge merges[kShort];  // of symbol i with the next one
  Symbol* const symbol = symbols.data() + begin;
  size_t count = symbols.size() - begin;
  const auto look_up = [&](size_t i) {
    const Merge* found = merges_.find(symbol[i].id, symbol[i + 1].id);
    merges[i] = found ? *found : kNone;
  };
  for (size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].id < 0) break;
    symbol[best] = {merges[best].id, symbol[best].size + symbol[best + 1].size};
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      symbol[i] = symbol[i + 1];
      if (i + 1 < count) merges[i] = merges[i + 1];
    }
    if (best > 0) look_up(best - 1);
    if (best + 1 < count) look_up(best);
  }
  symbols.resize(begin + count);
}

void Bpe::merge_long(std::vector<Symbol>& symbols, size_t begin, MergeScratch& scratch) const {
  Symbol* const symbol = symbols.data() + begin;
  const auto count = static_cast<int32_t>(symbols.size() - begin);
  auto& links = scratch.links;
  auto& queue = scratch.queue;
  queue.clear();
  links.resize(static_cast<size_t>(count));
  const auto link = [&](int32_t i) -> MergeScratch::Link& { return links[static_cast<size_t>(i)]; };
  const auto smaller_on_top = std::greater<uint64_t>();
  const auto push = [&](int32_t i, int32_t next) {
    const Merge* found = merges_.find(symbol[i].id, symbol[next].id);
    if (found == nullptr) return;
    queue.push_back(static_cast<uint64_t>(found->rank) << 32 | static_cast<uint32_t>(i));
    std::push_heap(queue.begin(), queue.end(), smaller_on_top);
  };
  for (int32_t i = 0; i < count; ++i) link(i) = {i - 1, i + 1 < count ? i + 1 : -1};
  for (int32_t i = 0; i + 1 < count; ++i) push(i, i + 1);
  while (!queue.empty()) {
    const uint64_t top = queue.front();
    std::pop_heap(queue.begin(), queue.end(), smaller_on_top);
    queue.pop_back();
    const auto i = static_cast<int32_t>(top & 0xFFFFFFFF);
    const int32_t next = link(i).next;
    if (symbol[i].size == 0 || next < 0) continue;  // gone since it was queued
    const Merge* found = merges_.find(symbol[i].id, symbol[next].id);
    if (found == nullptr || found->rank != top >> 32) continue;  // another pair by now
    symbol[i] = {found->id, symbol[i].size + symbol[next].size};
    symbol[next].size = 0;
    link(i).next = link(next).next;
    if (link(i).next >= 0) link(link(i).next).previous = i;
    if (link(i).previous >= 0) push(link(i).previous, i);
    if (link(i).next >= 0) push(i, link(i).next);
  }
  symbols.erase(std::remove_if(symbols.begin() + static_cast<std::ptrdiff_t>(begin), symbols.end(),
                               [](const Symbol& s) { return s.size == 0; }),
                symbols.end());
}

}  // namespace hotswap::tokenizers
