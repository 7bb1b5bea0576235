#include "hotswap/tokenizers/decoder.h"

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/tokenizers/byte_level.h"
#include "hotswap/tokenizers/pattern.h"
#include "hotswap/tokenizers/unicode.h"

namespace hotswap::tokenizers {
namespace {

using Tokens = std::vector<std::string>;

constexpr size_t kMaxTextBytes = size_t{1} << 28;  // bytes that a token, or the fused text, may grow to

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

class SequenceDecoder : public Decoder {
 public:
  explicit SequenceDecoder(std::vector<std::unique_ptr<Decoder>> parts) : parts_(std::move(parts)) {}
  Tokens apply(Tokens tokens) const override {
    for (const auto& part : parts_) tokens = part->apply(std::move(tokens));
    return tokens;
  }
  bool byte_runs() const override { return any(&Decoder::byte_runs); }
  bool trims_end() const override { return any(&Decoder::trims_end); }

 private:
  bool any(bool (Decoder::*question)() const) const {
    for (const auto& part : parts_) {
      if ((*part.*question)()) return true;
    }
    return false;
  }
  std::vector<std::unique_ptr<Decoder>> parts_;
};

class ByteLevelDecoder : public Decoder {
 public:
  Tokens apply(Tokens tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens) {
      const auto of_token = bytes_of_token(token);
      bytes += of_token ? *of_token : token;
    }
    return {utf8_lossy(bytes)};
  }
};

class ReplaceDecoder : public Decoder {
 public:
  ReplaceDecoder(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  Tokens apply(Tokens tokens) const override {
    std::vector<Stretch> stretches;
    for (std::string& token : tokens) {
      stretches.clear();
      pattern_.cut(token, stretches);
      std::string text;
      for (const Stretch& stretch : stretches) {
        text += stretch.found ? std::string_view(content_)
                              : std::string_view(token).substr(stretch.begin, stretch.end - stretch.begin);
        if (text.size() > kMaxTextBytes) {
          throw Error({.kind = ErrorKind::kCorrupt,
                       .wanted = cat("tokens of at most ", kMaxTextBytes, " bytes"),
                       .got = "more, of one token",
                       .next = "the decoder's Replace steps make it that large; correct tokenizer.json"});
        }
      }
      token = std::move(text);
    }
    return tokens;
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class ByteFallbackDecoder : public Decoder {
 public:
  bool byte_runs() const override { return true; }
  Tokens apply(Tokens tokens) const override {
    Tokens out;
    std::string run;
    const auto flush = [&] {
      if (run.empty()) return;
      if (find_invalid_utf8(run) == std::string_view::npos) {
        out.push_back(run);
      } else {
        out.insert(out.end(), run.size(), "\uFFFD");  // one for every byte of the whole run
      }
      run.clear();
    };
    for (std::string& token : tokens) {
      const int byte = byte_of_fallback_token(token);
      if (byte >= 0) {
        run += static_cast<char>(byte);
      } else {
        flush();
        out.push_back(std::move(token));
      }
    }
    flush();
    return out;
  }
};

class FuseDecoder : public Decoder {
 public:
  Tokens apply(Tokens tokens) const override {
    std::string text;
    for (const std::string& token : tokens) text += token;
    return {std::move(text)};
  }
};

class StripDecoder : public Decoder {
 public:
  StripDecoder(std::string content, int64_t start, int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  bool trims_end() const override { return stop_ > 0; }
  Tokens apply(Tokens tokens) const override {
    for (std::string& token : tokens) {
      size_t begin = 0;
      size_t end = token.size();
      const size_t size = content_.size();
      for (int64_t i = 0; i < start_ && token.compare(begin, size, content_) == 0; ++i) begin += size;
      for (int64_t i = 0; i < stop_ && end >= begin + size && token.compare(end - size, size, content_) == 0; ++i)
        end -= size;
      token = token.substr(begin, end - begin);
    }
    return tokens;
  }

 private:
  std::string content_;
  int64_t start_, stop_;
};

class MetaspaceDecoder : public Decoder {
 public:
  MetaspaceDecoder(std::string replacement, bool prepended)
      : replacement_(std::move(replacement)), prepended_(prepended) {}
  Tokens apply(Tokens tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::vector<Stretch> stretches;
      replacement_.cut(tokens[i], stretches);
      std::string text;
      for (const Stretch& stretch : stretches) {
        if (!stretch.found) text += tokens[i].substr(stretch.begin, stretch.end - stretch.begin);
        if (stretch.found && !(i == 0 && prepended_)) text += ' ';
      }
      tokens[i] = std::move(text);
    }
    return tokens;
  }

 private:
  Pattern replacement_;
  bool prepended_;
};

class BpeDecoder : public Decoder {
 public:
  explicit BpeDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  Tokens apply(Tokens tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::string_view blank = i + 1 == tokens.size() ? "" : " ";
      replace_all(tokens[i], suffix_, blank);
    }
    return tokens;
  }

 private:
  std::string suffix_;
};

// Takes back the blanks that tokenization leaves in English, one rule after the other.
void clean_up(std::string& token) {
  constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) replace_all(token, from, to);
}

class WordPieceDecoder : public Decoder {
 public:
  WordPieceDecoder(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  Tokens apply(Tokens tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && tokens[i].compare(0, prefix_.size(), prefix_) == 0) {
        tokens[i].erase(0, prefix_.size());
      } else if (i > 0) {
        tokens[i].insert(0, " ");
      }
      if (cleanup_) clean_up(tokens[i]);
    }
    return tokens;
  }

 private:
  std::string prefix_;
  bool cleanup_;
};

// Connectionist temporal classification: of equal neighbours one stays, and the padding between letters goes.
class CtcDecoder : public Decoder {
 public:
  explicit CtcDecoder(const Json& json)
      : pad_(json.at<std::string>("pad_token")),
        delimiter_(json.at<std::string>("word_delimiter_token")),
        cleanup_(json.at<bool>("cleanup")) {
    json.only({"type", "pad_token", "word_delimiter_token", "cleanup"});
    for (const std::string& token : {pad_, delimiter_}) {
      if (token.empty())
        throw Error({.kind = ErrorKind::kCorrupt,
                     .wanted = cat("two tokens at ", json.where()),
                     .got = "''",
                     .next = "name the token that is removed and the one of a word's end"});
    }
  }
  Tokens apply(Tokens tokens) const override {
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    Tokens out;
    for (std::string& token : tokens) {
      replace_all(token, pad_, "");
      if (cleanup_) {
        clean_up(token);
        replace_all(token, delimiter_, " ");
      }
      if (!token.empty()) out.push_back(std::move(token));
    }
    return out;
  }

 private:
  std::string pad_, delimiter_;
  bool cleanup_;
};

std::string one_character(const Json& json) {
  auto text = json.as<std::string>();
  if (text.empty() || code_point_at(text, 0).size != text.size()) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("one character at ", json.where()),
                 .got = cat("'", text, "'"),
                 .next = cat("change the value at ", json.where(), " to one character")});
  }
  return text;
}

std::unique_ptr<Decoder> read_strip(const Json& json) {
  json.only({"type", "content", "start", "stop"});
  const auto start = json.at<int64_t>("start");
  const auto stop = json.at<int64_t>("stop");
  if (start < 0 || stop < 0) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("start and stop of 0 or more at ", json.where()),
                 .got = cat(start, " and ", stop),
                 .next = "set both to the number of characters to strip, 0 or more"});
  }
  return make_strip_decoder(one_character(json.child("content")), start, stop);
}

std::unique_ptr<Decoder> read_metaspace(const Json& json) {
  json.only({"type", "replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"});
  const auto scheme = json.get<std::string>("prepend_scheme", "always");
  const bool prefix = json.get<bool>("add_prefix_space", true);
  if ((scheme != "first" && scheme != "never" && scheme != "always") || (!prefix && scheme != "never")) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("prepend_scheme first, always or never (the last with add_prefix_space false) at ",
                               json.where()),
                 .got = cat("'", scheme, "'"),
                 .next = "choose one of these"});
  }
  return std::make_unique<MetaspaceDecoder>(one_character(json.child("replacement")), scheme != "never");
}

}  // namespace

int byte_of_fallback_token(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c = static_cast<char>(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  const int high = digit(token[3]);
  const int low = digit(token[4]);
  if (token[3] == '+') return low;  // the library's number reader takes a sign
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::unique_ptr<Decoder> make_byte_level_decoder() { return std::make_unique<ByteLevelDecoder>(); }
std::unique_ptr<Decoder> make_replace_decoder(std::string literal, std::string content) {
  return std::make_unique<ReplaceDecoder>(Pattern(std::move(literal)), std::move(content));
}
std::unique_ptr<Decoder> make_byte_fallback_decoder() { return std::make_unique<ByteFallbackDecoder>(); }
std::unique_ptr<Decoder> make_fuse_decoder() { return std::make_unique<FuseDecoder>(); }
std::unique_ptr<Decoder> make_strip_decoder(std::string content, int64_t start, int64_t stop) {
  return std::make_unique<StripDecoder>(std::move(content), start, stop);
}
std::unique_ptr<Decoder> make_decoder_sequence(std::vector<std::unique_ptr<Decoder>> parts) {
  return std::make_unique<SequenceDecoder>(std::move(parts));
}

std::unique_ptr<Decoder> read_decoder(const Json& json) {
  const auto type = json.at<std::string>("type");
  if (type == "Sequence") {
    json.only({"type", "decoders"});
    std::vector<std::unique_ptr<Decoder>> parts;
    for (const Json& part : json.child("decoders").elements()) parts.push_back(read_decoder(part));
    return make_decoder_sequence(std::move(parts));
  }
  if (type == "ByteLevel") {
    json.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});  // none of them matters here
    return make_byte_level_decoder();
  }
  if (type == "Replace") {
    json.only({"type", "pattern", "content"});
    return std::make_unique<ReplaceDecoder>(Pattern::read(json.child("pattern")), json.at<std::string>("content"));
  }
  if (type == "ByteFallback") return json.only({"type"}), make_byte_fallback_decoder();
  if (type == "Fuse") return json.only({"type"}), make_fuse_decoder();
  if (type == "Strip") return read_strip(json);
  if (type == "Metaspace") return read_metaspace(json);
  if (type == "BPEDecoder") {
    json.only({"type", "suffix"});
    auto suffix = json.at<std::string>("suffix");
    if (suffix.empty())
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("a suffix at ", json.where()),
                   .got = "''",
                   .next = "write the suffix that ends a word, such as </w>"});
    return std::make_unique<BpeDecoder>(std::move(suffix));
  }
  if (type == "WordPiece") {
    json.only({"type", "prefix", "cleanup"});
    return std::make_unique<WordPieceDecoder>(json.at<std::string>("prefix"), json.at<bool>("cleanup"));
  }
  if (type == "CTC") return std::make_unique<CtcDecoder>(json);
  throw Error(
      {.kind = ErrorKind::kUnsupported,
       .wanted = cat("a decoder of the types Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, "
                     "BPEDecoder, WordPiece, CTC at ",
                     json.where()),
       .got = cat("type '", type, "'"),
       .next = "this type is not implemented; use a tokenizer with one of these"});
}

}  // namespace hotswap::tokenizers
