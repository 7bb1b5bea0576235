#include "hotswap/tokenizers/post_processor.h"

#include <algorithm>
#include <map>

#include "hotswap/base/error.h"
#include "hotswap/tokenizers/unicode.h"

namespace hotswap::tokenizers {
namespace {

// A piece of a template: one of the texts, or fixed tokens.
struct TemplatePiece {
  int text = -1;  // 0, 1; -1: tokens
  int64_t type_id = 0;
  std::vector<std::pair<std::string, int64_t>> tokens;
};

class TemplateProcessor : public PostProcessor {
 public:
  TemplateProcessor(std::vector<TemplatePiece> single, std::vector<TemplatePiece> pair)
      : single_(std::move(single)), pair_(std::move(pair)) {}

  void apply(std::vector<Encoding>& parts, bool add_special_tokens) const override {
    std::vector<Encoding> out;
    for (const TemplatePiece& piece : parts.size() == 2 ? pair_ : single_) {
      if (piece.text >= 0) {
        Encoding part = parts.at(static_cast<size_t>(piece.text));
        part.type_ids.assign(part.ids.size(), piece.type_id);
        out.push_back(std::move(part));
      } else if (add_special_tokens) {
        Encoding part;
        part.ids_only = parts[0].ids_only;
        for (const auto& [token, id] : piece.tokens) {
          part.ids.push_back(id);
          part.type_ids.push_back(piece.type_id);
          if (part.ids_only) continue;
          part.tokens.push_back(token);
          part.offsets.emplace_back(0, 0);
        }
        out.push_back(std::move(part));
      }
    }
    parts = std::move(out);
  }
  int64_t added_tokens(size_t texts) const override {
    size_t count = 0;
    for (const TemplatePiece& piece : texts == 2 ? pair_ : single_) count += piece.tokens.size();
    return static_cast<int64_t>(count);
  }

 private:
  std::vector<TemplatePiece> single_, pair_;
};

// Offsets without the blanks that belong to a token.
class TrimProcessor : public PostProcessor {
 public:
  explicit TrimProcessor(bool add_prefix_space) : add_prefix_space_(add_prefix_space) {}

  void apply(std::vector<Encoding>& parts, bool) const override {
    for (Encoding& part : parts) {
      if (part.ids_only) continue;
      for (size_t i = 0; i < part.ids.size(); ++i) trim(part.tokens[i], i == 0, part.offsets[i]);
    }
  }

 private:
  static bool is_blank(char32_t c) { return c == 0x120 || is_whitespace(c); }  // 0x120: 'Ġ'

  void trim(std::string_view token, bool first, std::pair<int64_t, int64_t>& offsets) const {
    int64_t leading = 0;
    int64_t trailing = 0;
    bool only_blanks = true;
    for (size_t at = 0; at < token.size();) {
      const CodePoint point = code_point_at(token, at);
      at += point.size;
      const bool blank = is_blank(point.value);
      only_blanks = only_blanks && blank;
      if (only_blanks) ++leading;
      trailing = blank ? trailing + 1 : 0;
    }
    // A single blank at the start is the one that the pre-tokenizer put there.
    if ((first || offsets.first == 0) && add_prefix_space_ && leading == 1) leading = 0;
    if (leading > 0) offsets.first = std::min(offsets.first + leading, offsets.second);
    if (trailing > 0 && offsets.second >= trailing) offsets.second = std::max(offsets.second - trailing, offsets.first);
  }

  bool add_prefix_space_;
};

class SequenceProcessor : public PostProcessor {
 public:
  explicit SequenceProcessor(std::vector<std::unique_ptr<PostProcessor>> parts) : parts_(std::move(parts)) {}
  void apply(std::vector<Encoding>& encodings, bool add_special_tokens) const override {
    for (const auto& part : parts_) part->apply(encodings, add_special_tokens);
  }
  int64_t added_tokens(size_t texts) const override {
    int64_t count = 0;
    for (const auto& part : parts_) count += part->added_tokens(texts);
    return count;
  }

 private:
  std::vector<std::unique_ptr<PostProcessor>> parts_;
};

using SpecialTokens = std::map<std::string, std::vector<std::pair<std::string, int64_t>>>;

SpecialTokens read_special_tokens(const Json& json, const TokenOf& token_of) {
  SpecialTokens all;
  for (const auto& [name, entry] : json.items()) {
    entry.only({"id", "ids", "tokens"});
    const auto ids = entry.at<std::vector<int64_t>>("ids");
    const auto tokens = entry.at<std::vector<std::string>>("tokens");
    if (ids.size() != tokens.size()) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("as many ids as tokens at ", entry.where()),
                   .got = cat(ids.size(), " and ", tokens.size()),
                   .next = "give each token its id, in the same order"});
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!token_of(ids[i])) {
        throw Error({.kind = ErrorKind::kCorrupt,
                     .wanted = cat("an id of the vocabulary for '", tokens[i], "' at ", entry.where()),
                     .got = cat(ids[i]),
                     .next = "write the id that the vocabulary or added_tokens has for this token"});
      }
      all[name].emplace_back(tokens[i], ids[i]);
    }
  }
  return all;
}

// ["[SEP]", 102]
TemplatePiece read_token(const Json& json, const TokenOf& token_of) {
  const auto pair = json.elements();
  if (pair.size() != 2) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("a token and its id at ", json.where()),
                 .got = cat(pair.size(), " elements"),
                 .next = "write [token, id]"});
  }
  const auto id = pair[1].as<int64_t>();
  if (!token_of(id)) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("an id of the vocabulary for '", pair[0].as<std::string>(), "' at ", json.where()),
                 .got = cat(id),
                 .next = "write the id that the vocabulary or added_tokens has for this token"});
  }
  return {.text = -1, .type_id = 0, .tokens = {{pair[0].as<std::string>(), id}}};
}

// [CLS] A [SEP] B [SEP], the second text and what ends it with type id 1.
std::unique_ptr<PostProcessor> read_bert(const Json& json, const TokenOf& token_of) {
  json.only({"type", "sep", "cls"});
  const TemplatePiece cls = read_token(json.child("cls"), token_of);
  const TemplatePiece sep = read_token(json.child("sep"), token_of);
  const TemplatePiece first{.text = 0, .type_id = 0, .tokens = {}};
  const TemplatePiece second{.text = 1, .type_id = 1, .tokens = {}};
  TemplatePiece last = sep;
  last.type_id = 1;
  return std::make_unique<TemplateProcessor>(std::vector{cls, first, sep}, std::vector{cls, first, sep, second, last});
}

// <s> A </s></s> B </s>, all type ids 0.
std::unique_ptr<PostProcessor> read_roberta(const Json& json, const TokenOf& token_of) {
  json.only({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
  const TemplatePiece cls = read_token(json.child("cls"), token_of);
  const TemplatePiece sep = read_token(json.child("sep"), token_of);
  const TemplatePiece first{.text = 0, .type_id = 0, .tokens = {}};
  const TemplatePiece second{.text = 1, .type_id = 0, .tokens = {}};
  std::vector<std::unique_ptr<PostProcessor>> parts;
  if (json.at<bool>("trim_offsets"))
    parts.push_back(std::make_unique<TrimProcessor>(json.at<bool>("add_prefix_space")));
  parts.push_back(std::make_unique<TemplateProcessor>(std::vector{cls, first, sep},
                                                      std::vector{cls, first, sep, sep, second, sep}));
  return std::make_unique<SequenceProcessor>(std::move(parts));
}

std::vector<TemplatePiece> read_template(const Json& json, int texts, const SpecialTokens& special) {
  std::vector<TemplatePiece> pieces;
  bool used[2] = {false, false};
  for (const Json& item : json.elements()) {
    item.only({"Sequence", "SpecialToken"});
    const auto sequence = item.find("Sequence");
    const Json inner = sequence ? *sequence : item.child("SpecialToken");
    inner.only({"id", "type_id"});
    const auto id = inner.at<std::string>("id");
    TemplatePiece piece{.text = -1, .type_id = inner.at<int64_t>("type_id"), .tokens = {}};
    if (sequence) {
      piece.text = id == "A" ? 0 : id == "B" ? 1 : 2;
      if (piece.text >= texts) {
        throw Error({.kind = ErrorKind::kCorrupt,
                     .wanted = cat(texts == 1 ? "sequence A" : "sequence A or B", " at ", inner.where()),
                     .got = cat("'", id, "'"),
                     .next = "write A or B: a template has no other sequences"});
      }
      used[piece.text] = true;
    } else {
      const auto found = special.find(id);
      if (found == special.end()) {
        throw Error({.kind = ErrorKind::kCorrupt,
                     .wanted = cat("a name from special_tokens at ", inner.where()),
                     .got = cat("'", id, "'"),
                     .next = "add it to special_tokens, or name one of those"});
      }
      piece.tokens = found->second;
    }
    pieces.push_back(std::move(piece));
  }
  if (texts == 2 && !(used[0] && used[1])) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("both sequences at ", json.where()),
                 .got = "one of them",
                 .next = "add the one that is missing: a pair has both"});
  }
  return pieces;
}

}  // namespace

std::unique_ptr<PostProcessor> make_framing(const Framing& framing) {
  std::vector<TemplatePiece> pieces[2];
  for (int texts = 1; texts <= 2; ++texts) {
    for (int text = 0; text < texts; ++text) {
      auto& out = pieces[texts - 1];
      if (!framing.before.empty()) out.push_back({.text = -1, .type_id = text, .tokens = framing.before});
      out.push_back({.text = text, .type_id = text, .tokens = {}});
      if (!framing.behind.empty()) out.push_back({.text = -1, .type_id = text, .tokens = framing.behind});
    }
  }
  return std::make_unique<TemplateProcessor>(std::move(pieces[0]), std::move(pieces[1]));
}

std::unique_ptr<PostProcessor> read_post_processor(const Json& json, const TokenOf& token_of) {
  const auto type = json.at<std::string>("type");
  if (type == "TemplateProcessing") {
    json.only({"type", "single", "pair", "special_tokens"});
    const SpecialTokens special = read_special_tokens(json.child("special_tokens"), token_of);
    return std::make_unique<TemplateProcessor>(read_template(json.child("single"), 1, special),
                                               read_template(json.child("pair"), 2, special));
  }
  if (type == "ByteLevel") {
    json.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    const bool prefix = json.at<bool>("add_prefix_space");
    if (json.at<bool>("trim_offsets")) return std::make_unique<TrimProcessor>(prefix);
    return std::make_unique<SequenceProcessor>(std::vector<std::unique_ptr<PostProcessor>>{});
  }
  if (type == "Sequence") {
    json.only({"type", "processors"});
    std::vector<std::unique_ptr<PostProcessor>> parts;
    for (const Json& part : json.child("processors").elements()) parts.push_back(read_post_processor(part, token_of));
    return std::make_unique<SequenceProcessor>(std::move(parts));
  }
  if (type == "BertProcessing") return read_bert(json, token_of);
  if (type == "RobertaProcessing") return read_roberta(json, token_of);
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("a post-processor of the types TemplateProcessing, ByteLevel, Sequence, BertProcessing, "
                             "RobertaProcessing at ",
                             json.where()),
               .got = cat("type '", type, "'"),
               .next = "this type is not implemented; use a tokenizer with one of these"});
}

}  // namespace hotswap::tokenizers
