#include "hotswap/tokenizers/normalizer.h"

#include "hotswap/tokenizers/byte_level.h"
#include "hotswap/tokenizers/unicode.h"

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
  bool leaves(std::string_view text) const override { return pattern_.is_absent(text); }

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
        points.push_back({to_lowercase(point.value), 0});
      }
    }
    text.rewrite(points);
  }
};

class ByteLevelNormalizer : public Normalizer {
 public:
  void apply(NormalizedString& text) const override { to_byte_characters(text); }
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

std::unique_ptr<Normalizer> make_form(NormalizationForm form) { return std::make_unique<FormNormalizer>(form); }

std::unique_ptr<Normalizer> make_lowercase() { return std::make_unique<LowercaseNormalizer>(); }

std::unique_ptr<Normalizer> make_strip(bool left, bool right) { return std::make_unique<StripNormalizer>(left, right); }

std::unique_ptr<Normalizer> make_byte_level_normalizer() { return std::make_unique<ByteLevelNormalizer>(); }

std::unique_ptr<Normalizer> make_replace(Pattern pattern, std::string content) {
  return std::make_unique<ReplaceNormalizer>(std::move(pattern), std::move(content));
}

std::unique_ptr<Normalizer> make_prepend(std::string content) {
  return std::make_unique<PrependNormalizer>(std::move(content));
}

std::unique_ptr<Normalizer> make_normalizer_sequence(std::vector<std::unique_ptr<Normalizer>> parts) {
  return std::make_unique<SequenceNormalizer>(std::move(parts));
}

}  // namespace hotswap::tokenizers
