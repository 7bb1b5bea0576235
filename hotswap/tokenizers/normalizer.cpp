#include "hotswap/tokenizers/normalizer.h"

#include <utf8proc.h>

#include "hotswap/base/error.h"
#include "hotswap/tokenizers/pattern.h"
#include "hotswap/tokenizers/unicode.h"
#include "hotswap/tokenizers/unicode_normalization.h"

namespace hotswap::tokenizers {
namespace {

class SequenceNormalizer : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}
  void apply(NormalizedString& text) const override {
    for (const auto& part : parts_) part->apply(text);
  }
  bool leaves(std::string_view text) const override {
    for (const auto& part : parts_) {
      if (!part->leaves(text)) return false;
    }
    return true;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

class FormNormalizer : public Normalizer {
 public:
  explicit FormNormalizer(NormalizationForm form) : form_(form) {}
  void apply(NormalizedString& text) const override {
    if (!leaves(text.bytes)) text.rewrite(normalize_unicode(text.bytes, form_));
  }
  bool leaves(std::string_view text) const override { return is_normalized(text, form_); }

 private:
  NormalizationForm form_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(NormalizedString& text) const override {
    std::vector<Stretch> stretches;
    pattern_.cut(text.bytes, stretches);
    for (const Stretch& stretch : stretches) {
      if (stretch.found) return text.replace_found(stretches, content_);
    }
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string content) : content_(std::move(content)) {}
  void apply(NormalizedString& text) const override { text.prepend(content_); }

 private:
  std::string content_;
};

class LowercaseNormalizer : public Normalizer {
 public:
  void apply(NormalizedString& text) const override {
    std::vector<NewPoint> points;
    points.reserve(text.bytes.size());
    for (size_t at = 0; at < text.bytes.size();) {
      const CodePoint point = code_point_at(text.bytes, at);
      at += point.size;
      if (point.value == 0x130) {  // the only letter whose lower case is two characters
        points.push_back({U'i', 0});
        points.push_back({0x307, 1});
      } else {
        points.push_back({static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(point.value))), 0});
      }
    }
    text.rewrite(points);
  }
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  void apply(NormalizedString& text) const override {
    size_t begin = 0;
    size_t end = text.bytes.size();
    while (left_ && begin < end) {
      const CodePoint point = code_point_at(text.bytes, begin);
      if (!is_whitespace(point.value)) break;
      begin += point.size;
    }
    while (right_ && end > begin) {
      size_t last = end - 1;
      while (is_continuation(text.bytes[last])) --last;
      if (!is_whitespace(code_point_at(text.bytes, last).value)) break;
      end = last;
    }
    text.keep(begin, end);
  }

 private:
  bool left_, right_;
};

}  // namespace

std::unique_ptr<Normalizer> make_nfc() { return std::make_unique<FormNormalizer>(NormalizationForm::kNfc); }

std::unique_ptr<Normalizer> make_replace(std::string literal, std::string content) {
  return std::make_unique<ReplaceNormalizer>(Pattern(std::move(literal)), std::move(content));
}

std::unique_ptr<Normalizer> make_prepend(std::string content) {
  return std::make_unique<PrependNormalizer>(std::move(content));
}

std::unique_ptr<Normalizer> make_normalizer_sequence(std::vector<std::unique_ptr<Normalizer>> parts) {
  return std::make_unique<SequenceNormalizer>(std::move(parts));
}

std::unique_ptr<Normalizer> read_normalizer(const Json& json) {
  const auto type = json.at<std::string>("type");
  if (type == "Sequence") {
    json.only({"type", "normalizers"});
    std::vector<std::unique_ptr<Normalizer>> parts;
    for (const Json& part : json.child("normalizers").elements()) parts.push_back(read_normalizer(part));
    return make_normalizer_sequence(std::move(parts));
  }
  constexpr std::pair<std::string_view, NormalizationForm> kForms[] = {{"NFC", NormalizationForm::kNfc},
                                                                       {"NFD", NormalizationForm::kNfd},
                                                                       {"NFKC", NormalizationForm::kNfkc},
                                                                       {"NFKD", NormalizationForm::kNfkd}};
  for (const auto& [name, form] : kForms) {
    if (type != name) continue;
    json.only({"type"});
    return std::make_unique<FormNormalizer>(form);
  }
  if (type == "Replace") {
    json.only({"type", "pattern", "content"});
    return std::make_unique<ReplaceNormalizer>(Pattern::read(json.child("pattern")), json.at<std::string>("content"));
  }
  if (type == "Prepend") {
    json.only({"type", "prepend"});
    return make_prepend(json.at<std::string>("prepend"));
  }
  if (type == "Lowercase") {
    json.only({"type"});
    return std::make_unique<LowercaseNormalizer>();
  }
  if (type == "Strip") {
    json.only({"type", "strip_left", "strip_right"});
    return std::make_unique<StripNormalizer>(json.at<bool>("strip_left"), json.at<bool>("strip_right"));
  }
  throw Error(
      {.wanted = cat("a normalizer of the types Sequence, NFC, NFD, NFKC, NFKD, Replace, Prepend, Lowercase, Strip at ",
                     json.where()),
       .got = cat("type '", type, "'"),
       .next = "this type is not implemented; use a tokenizer with one of these"});
}

}  // namespace hotswap::tokenizers
