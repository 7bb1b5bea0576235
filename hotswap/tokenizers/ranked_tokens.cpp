#include "hotswap/tokenizers/ranked_tokens.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "hotswap/base/error.h"
#include "hotswap/tokenizers/base64.h"
#include "hotswap/tokenizers/bpe.h"
#include "hotswap/tokenizers/byte_level.h"
#include "hotswap/tokenizers/tokenizer_impl.h"

namespace hotswap::tokenizers {
namespace {

constexpr size_t kLongestToken = 1024;  // bytes: all ways to cut it in two are tried

struct RankedToken {
  std::string bytes;
  int64_t id;
};

struct RankedVocabulary {
  std::vector<RankedToken> tokens;  // by rank
  std::vector<std::pair<std::string, int64_t>> special;
  std::string pattern;
  std::string where;
};

std::string spelled(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) out += byte_characters()[static_cast<uint8_t>(byte)];
  return out;
}

// Every way to cut a token into two others is a merge: by the rank of the token, then by those of its halves.
std::vector<std::pair<std::string, std::string>> merges_of(const std::vector<RankedToken>& tokens) {
  std::unordered_map<std::string_view, size_t> ranks;
  for (size_t rank = 0; rank < tokens.size(); ++rank) ranks.emplace(tokens[rank].bytes, rank);
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<std::pair<size_t, size_t>> halves;
  for (const RankedToken& token : tokens) {
    halves.clear();
    const std::string_view bytes = token.bytes;
    for (size_t size = 1; size < bytes.size(); ++size) {
      const auto left = ranks.find(bytes.substr(0, size));
      const auto right = ranks.find(bytes.substr(size));
      if (left != ranks.end() && right != ranks.end()) halves.emplace_back(left->second, right->second);
    }
    std::sort(halves.begin(), halves.end());
    for (const auto& [left, right] : halves)
      merges.emplace_back(spelled(tokens[left].bytes), spelled(tokens[right].bytes));
  }
  return merges;
}

std::shared_ptr<Tokenizer::Parts> parts_of(const RankedVocabulary& ranked) {
  BpeConfig config;
  config.where = ranked.where;
  config.ignore_merges = true;
  config.same = Vocabulary::SameString::kLastWins;  // a special token before one of the same bytes
  for (const RankedToken& token : ranked.tokens) {
    if (token.bytes.empty() || token.bytes.size() > kLongestToken) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("tokens of 1 to ", kLongestToken, " bytes in ", ranked.where),
                   .got = cat(token.bytes.size(), " bytes with id ", token.id),
                   .next = "fetch the file again"});
    }
    config.vocabulary.emplace_back(spelled(token.bytes), token.id);
  }
  std::vector<AddedToken> added;
  for (const auto& [content, id] : ranked.special) {
    config.vocabulary.emplace_back(content, id);
    added.push_back({.id = id, .content = content, .special = true});
  }
  config.merges = merges_of(ranked.tokens);

  auto parts = std::make_shared<Tokenizer::Parts>();
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  steps.push_back(make_isolating_split(ranked.pattern, cat(ranked.where, ": pattern")));
  steps.push_back(make_byte_level(/*add_prefix_space=*/false, /*use_regex=*/false));
  parts->pre_tokenizer = make_pre_tokenizer_sequence(std::move(steps));
  parts->decoder = make_byte_level_decoder();
  parts->model = std::make_unique<Bpe>(std::move(config));
  parts->added = std::make_unique<AddedTokens>(std::move(added), parts->model->vocabulary(), nullptr, ranked.where);
  const auto id_of = [&](std::string_view name) {
    const int64_t id = parts->added->find(name);
    return id < 0 ? std::nullopt : std::optional(id);
  };
  parts->special = {.bos = id_of("<s>"), .eos = id_of("</s>"), .pad = id_of("<pad>"), .unk = id_of("<unk>")};
  parts->finish();
  return parts;
}

}  // namespace

Tokenizer read_tekken(std::string_view text, const std::string& where) {
  const Json json = Json::parse(text, where);
  const Json config = json.child("config");
  RankedVocabulary ranked;
  ranked.where = where;
  ranked.pattern = config.at<std::string>("pattern");

  const std::vector<Json> special = json.child("special_tokens").elements();
  const auto count = config.get<int64_t>("default_num_special_tokens", static_cast<int64_t>(special.size()));
  const std::vector<Json> tokens = json.child("vocab").elements();
  const auto size = config.get<int64_t>("default_vocab_size", static_cast<int64_t>(tokens.size()) + count);
  if (count < static_cast<int64_t>(special.size()) || size < count || count > (1 << 20)) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("default_num_special_tokens from ", special.size(), " to default_vocab_size in ", where),
                 .got = cat(count, " and ", size),
                 .next = "fetch the file again"});
  }
  for (int64_t id = 0; id < count; ++id) ranked.special.emplace_back(cat("<SPECIAL_", id, ">"), id);
  for (const Json& token : special) {
    const auto rank = token.at<int64_t>("rank");
    if (rank < 0 || rank >= static_cast<int64_t>(special.size())) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("ranks from 0 to ", special.size() - 1, " at ", token.where()),
                   .got = cat(rank),
                   .next = "fetch the file again"});
    }
    ranked.special[static_cast<size_t>(rank)].first = token.at<std::string>("token_str");
  }
  for (const Json& token : tokens) {
    if (static_cast<int64_t>(ranked.tokens.size()) == size - count) break;  // the rest is not of this model
    ranked.tokens.push_back({decode_base64(token.at<std::string>("token_bytes"), token.where()),
                             count + static_cast<int64_t>(ranked.tokens.size())});
  }
  return Tokenizer(parts_of(ranked));
}

Tokenizer read_tiktoken(std::string_view text, const std::string& pattern, const std::vector<std::string>& special,
                        const std::string& where) {
  RankedVocabulary ranked;
  ranked.where = where;
  ranked.pattern = pattern;
  int64_t next_id = 0;
  for (size_t at = 0, line = 1; at < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view row = text.substr(at, end - at);
    at = end + 1;
    if (row.empty()) continue;
    const size_t blank = std::min(row.find(' '), row.size());
    const std::string_view number = row.substr(std::min(blank + 1, row.size()));
    int64_t id = -1;
    const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), id);
    if (error != std::errc() || stop != number.data() + number.size() || id < next_id) {
      throw Error(
          {.kind = ErrorKind::kCorrupt,
           .wanted = cat("a token in base64, a blank and a rank above those before it in ", where, ", line ", line),
           .got = cat("'", row.substr(0, 64), "'"),
           .next = "fetch the file again"});
    }
    ranked.tokens.push_back({decode_base64(row.substr(0, blank), cat(where, ", line ", line)), id});
    next_id = id + 1;
  }
  for (const std::string& token : special) ranked.special.emplace_back(token, next_id++);
  return Tokenizer(parts_of(ranked));
}

}  // namespace hotswap::tokenizers
