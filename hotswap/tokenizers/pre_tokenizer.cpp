#include "hotswap/tokenizers/pre_tokenizer.h"

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/tokenizers/byte_level.h"
#include "hotswap/tokenizers/pattern.h"
#include "hotswap/tokenizers/unicode.h"
#include "hotswap/tokenizers/unicode_tables.h"

namespace hotswap::tokenizers {
namespace {

// The regular expression that ByteLevel has built in, from GPT-2.
constexpr const char* kGpt2Regex = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

void cut_by(PreTokenizedString& pretokenized, const Pattern& pattern, Behavior behavior, bool invert = false) {
  std::vector<Stretch> stretches;
  pretokenized.cut([&](const Piece& piece, std::vector<Piece>& out) {
    stretches.clear();
    pattern.cut(pretokenized.view(piece), stretches);
    for (Stretch& stretch : stretches) stretch.found ^= invert;
    split(piece, stretches, behavior, out);
  });
}

class SequencePreTokenizer : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<std::unique_ptr<PreTokenizer>> parts) : parts_(std::move(parts)) {}
  void apply(PreTokenizedString& pretokenized) const override {
    for (const auto& part : parts_) part->apply(pretokenized);
  }
  bool leave_bytes_to_model() override { return !parts_.empty() && parts_.back()->leave_bytes_to_model(); }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, bool use_regex) : add_prefix_space_(add_prefix_space) {
    if (use_regex) pattern_.emplace(Regex(kGpt2Regex, "ByteLevel's own pattern"));
  }
  void apply(PreTokenizedString& pretokenized) const override {
    if (add_prefix_space_) {
      bool all = true;
      for (const Piece& piece : pretokenized.pieces())
        all = all && (piece.id >= 0 || pretokenized.view(piece)[0] == ' ');
      const auto prefix = [](NormalizedString& text) {
        if (text.bytes[0] != ' ') text.prepend(" ");
      };
      if (!all) pretokenized.rewrite(prefix);
    }
    if (pattern_) cut_by(pretokenized, *pattern_, Behavior::kIsolated);
    if (bytes_left_to_model_) {
      pretokenized.byte_level = true;
    } else {
      pretokenized.rewrite(to_byte_characters);
    }
  }
  bool leave_bytes_to_model() override { return bytes_left_to_model_ = true; }

 private:
  bool add_prefix_space_;
  bool bytes_left_to_model_ = false;
  std::optional<Pattern> pattern_;
};

class SplitPreTokenizer : public PreTokenizer {
 public:
  SplitPreTokenizer(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void apply(PreTokenizedString& pretokenized) const override { cut_by(pretokenized, pattern_, behavior_, invert_); }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

class MetaspacePreTokenizer : public PreTokenizer {
 public:
  enum class Prepend { kFirst, kNever, kAlways };

  explicit MetaspacePreTokenizer(const Json& json) : replacement_(json.at<std::string>("replacement")) {
    json.only({"type", "replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"});
    const auto scheme = json.get<std::string>("prepend_scheme", "always");
    if (replacement_.empty() || code_point_at(replacement_, 0).size != replacement_.size()) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("one character at ", json.where(), ".replacement"),
                   .got = cat("'", replacement_, "'"),
                   .next = "write one character, such as \u2581"});
    }
    const bool prefix = json.get<bool>("add_prefix_space", true);
    if ((scheme != "first" && scheme != "never" && scheme != "always") || (!prefix && scheme != "never")) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("prepend_scheme first, always or never (the last with add_prefix_space false) at ",
                                 json.where()),
                   .got = cat("'", scheme, "' with add_prefix_space ", prefix ? "true" : "false"),
                   .next = "choose one of these; never where add_prefix_space is false"});
    }
    prepend_ = scheme == "first" ? Prepend::kFirst : scheme == "never" ? Prepend::kNever : Prepend::kAlways;
    split_ = json.get<bool>("split", true);
  }

  void apply(PreTokenizedString& pretokenized) const override {
    std::vector<Stretch> stretches;
    pretokenized.rewrite([&](NormalizedString& text) {
      stretches.clear();
      const bool first = text.origin[0].begin == 0;
      kBlank.cut(text.bytes, stretches);
      text.replace_found(stretches, replacement_);
      const bool prepend = prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && first);
      if (prepend && text.bytes.compare(0, replacement_.size(), replacement_) != 0) text.prepend(replacement_);
    });
    if (split_) cut_by(pretokenized, Pattern(replacement_), Behavior::kMergedWithNext);
  }

 private:
  const Pattern kBlank{std::string(" ")};
  std::string replacement_;
  Prepend prepend_ = Prepend::kAlways;
  bool split_ = true;
};

class WhitespacePreTokenizer : public PreTokenizer {  // \w+|[^\w\s]+
 public:
  void apply(PreTokenizedString& pretokenized) const override {
    pretokenized.cut([&](const Piece& piece, std::vector<Piece>& out) {
      const std::string_view text = pretokenized.view(piece);
      int previous = 0;  // 0: blank, 1: word, 2: other
      for (uint32_t at = 0; at < text.size();) {
        const CodePoint point = code_point_at(text, at);
        const int kind = is_word(point.value) ? 1 : is_whitespace(point.value) ? 0 : 2;
        const uint32_t begin = piece.begin + at;
        if (kind != 0 && kind == previous) {
          out.back().end = begin + point.size;
        } else if (kind != 0) {
          out.push_back({begin, begin + point.size});
        }
        previous = kind;
        at += point.size;
      }
    });
  }
};

class BertPreTokenizer : public PreTokenizer {
 public:
  void apply(PreTokenizedString& pretokenized) const override {
    pretokenized.cut([&](const Piece& piece, std::vector<Piece>& out) {
      const std::string_view text = pretokenized.view(piece);
      uint32_t done = 0;  // where the word begins that is not pushed yet
      for (uint32_t at = 0; at < text.size();) {
        const CodePoint point = code_point_at(text, at);
        const uint32_t end = at + point.size;
        const bool blank = is_whitespace(point.value);
        if (blank || is_punctuation(point.value)) {
          if (done < at) out.push_back({piece.begin + done, piece.begin + at});
          if (!blank) out.push_back({piece.begin + at, piece.begin + end});
          done = end;
        }
        at = end;
      }
      if (done < text.size()) out.push_back({piece.begin + done, piece.end});
    });
  }
};

// Cuts where the script changes. Japanese kana count as Han; characters without a script join what is before them, and
// at the beginning they are dropped, as the library does it.
class UnicodeScriptsPreTokenizer : public PreTokenizer {
 public:
  void apply(PreTokenizedString& pretokenized) const override {
    pretokenized.cut([&](const Piece& piece, std::vector<Piece>& out) {
      const std::string_view text = pretokenized.view(piece);
      int previous = 0;
      uint32_t done = 0;
      for (uint32_t at = 0; at < text.size();) {
        const CodePoint point = code_point_at(text, at);
        const int script = script_of(point.value);
        if (script != 0 && script != previous) {
          if (previous != 0) out.push_back({piece.begin + done, piece.begin + at});
          done = at;
          previous = script;
        }
        at += point.size;
      }
      if (previous != 0) out.push_back({piece.begin + done, piece.end});
    });
  }

 private:
  static int script_of(char32_t c) {
    const auto ranges = script_ranges();
    const auto after = std::upper_bound(ranges.begin(), ranges.end(), c,
                                        [](char32_t value, const ScriptRange& range) { return value < range.first; });
    return after == ranges.begin() || c > std::prev(after)->last ? 0 : std::prev(after)->script;
  }
};

class FixedLengthPreTokenizer : public PreTokenizer {
 public:
  explicit FixedLengthPreTokenizer(int64_t length) : length_(length) {}
  void apply(PreTokenizedString& pretokenized) const override {
    pretokenized.cut([&](const Piece& piece, std::vector<Piece>& out) {
      const std::string_view text = pretokenized.view(piece);
      int64_t count = 0;
      uint32_t done = 0;
      for (uint32_t at = 0; at < text.size();) {
        at += code_point_at(text, at).size;
        if (++count % length_ != 0) continue;
        out.push_back({piece.begin + done, piece.begin + at});
        done = at;
      }
      out.push_back({piece.begin + done, piece.end});
    });
  }

 private:
  int64_t length_;  // characters
};

std::unique_ptr<PreTokenizer> read_fixed_length(const Json& json) {
  json.only({"type", "length"});
  const auto length = json.get<int64_t>("length", 5);
  if (length < 1) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("a length of 1 or more at ", json.where()),
                 .got = cat(length),
                 .next = "set length to 1 or more"});
  }
  return std::make_unique<FixedLengthPreTokenizer>(length);
}

std::string read_delimiter(const Json& json) {
  json.only({"type", "delimiter"});
  auto delimiter = json.at<std::string>("delimiter");
  if (delimiter.empty() || code_point_at(delimiter, 0).size != delimiter.size()) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("one character at ", json.where(), ".delimiter"),
                 .got = cat("'", delimiter, "'"),
                 .next = "write one character, such as a comma"});
  }
  return delimiter;
}

std::unique_ptr<PreTokenizer> make_split(Pattern pattern, Behavior behavior, bool invert = false) {
  return std::make_unique<SplitPreTokenizer>(std::move(pattern), behavior, invert);
}

}  // namespace

std::unique_ptr<PreTokenizer> make_byte_level(bool add_prefix_space, bool use_regex) {
  return std::make_unique<ByteLevelPreTokenizer>(add_prefix_space, use_regex);
}

std::unique_ptr<PreTokenizer> make_digits() { return make_split(Pattern(is_numeric), Behavior::kIsolated); }

std::unique_ptr<PreTokenizer> make_isolating_split(const std::string& regex, const std::string& where) {
  return make_split(Pattern(Regex(regex, where)), Behavior::kIsolated);
}

std::unique_ptr<PreTokenizer> make_pre_tokenizer_sequence(std::vector<std::unique_ptr<PreTokenizer>> parts) {
  return std::make_unique<SequencePreTokenizer>(std::move(parts));
}

std::unique_ptr<PreTokenizer> read_pre_tokenizer(const Json& json) {
  const auto type = json.at<std::string>("type");
  if (type == "Sequence") {
    json.only({"type", "pretokenizers"});
    std::vector<std::unique_ptr<PreTokenizer>> parts;
    for (const Json& part : json.child("pretokenizers").elements()) parts.push_back(read_pre_tokenizer(part));
    return make_pre_tokenizer_sequence(std::move(parts));
  }
  if (type == "ByteLevel") {
    json.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    json.at<bool>("trim_offsets");  // means something in a post-processor only
    return make_byte_level(json.at<bool>("add_prefix_space"), json.get<bool>("use_regex", true));
  }
  if (type == "Split") {
    json.only({"type", "pattern", "behavior", "invert"});
    return make_split(Pattern::read(json.child("pattern")), read_behavior(json.child("behavior")),
                      json.at<bool>("invert"));
  }
  if (type == "Digits") {
    json.only({"type", "individual_digits"});
    return json.at<bool>("individual_digits") ? make_digits() : make_split(Pattern(is_numeric), Behavior::kContiguous);
  }
  if (type == "Punctuation") {
    json.only({"type", "behavior"});
    const auto behavior = json.find("behavior");
    return make_split(Pattern(is_punctuation), behavior ? read_behavior(*behavior) : Behavior::kIsolated);
  }
  if (type == "Metaspace") return std::make_unique<MetaspacePreTokenizer>(json);
  if (type == "Whitespace") {
    json.only({"type"});
    return std::make_unique<WhitespacePreTokenizer>();
  }
  if (type == "WhitespaceSplit") {
    json.only({"type"});
    return make_split(Pattern(is_whitespace), Behavior::kRemoved);
  }
  if (type == "BertPreTokenizer") return json.only({"type"}), std::make_unique<BertPreTokenizer>();
  if (type == "UnicodeScripts") return json.only({"type"}), std::make_unique<UnicodeScriptsPreTokenizer>();
  if (type == "FixedLength") return read_fixed_length(json);
  if (type == "CharDelimiterSplit") return make_split(Pattern(read_delimiter(json)), Behavior::kRemoved);
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("a pre-tokenizer of the types Sequence, ByteLevel, Split, Digits, Metaspace, Whitespace, "
                             "WhitespaceSplit, Punctuation, BertPreTokenizer, UnicodeScripts, FixedLength, "
                             "CharDelimiterSplit at ",
                             json.where()),
               .got = cat("type '", type, "'"),
               .next = "this type is not implemented; use a tokenizer with one of these"});
}

}  // namespace hotswap::tokenizers
