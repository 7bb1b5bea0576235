#include "hotswap/tokenizers/normalizer_bert.h"

#include <algorithm>

#include "hotswap/tokenizers/code_point_set.h"
#include "hotswap/tokenizers/unicode.h"
#include "hotswap/tokenizers/unicode_normalization.h"

namespace hotswap::tokenizers {
namespace {

constexpr char32_t kRemoved = 0xFFFFFFFF;

// Each character becomes change(c), or goes.
template <class Change>
void map_characters(NormalizedString& text, const Change& change) {
  std::string bytes;
  std::vector<Span> origin;
  bytes.reserve(text.bytes.size());
  origin.reserve(text.origin.size());
  for (size_t at = 0; at < text.bytes.size();) {
    const CodePoint point = code_point_at(text.bytes, at);
    const char32_t changed = change(point.value);
    if (changed < 0x80) {
      bytes += static_cast<char>(changed);
    } else if (changed != kRemoved) {
      append_utf8(bytes, changed);
    }
    origin.resize(bytes.size(), text.origin[at]);
    at += point.size;
  }
  text.bytes = std::move(bytes);
  text.origin = std::move(origin);
}

// The library's ranges of ideographs. It has 2B920 where Unicode's block begins at 2B820.
bool is_chinese(char32_t c) {
  constexpr std::pair<char32_t, char32_t> kRanges[] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF},
                                                       {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF},
                                                       {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  if (c < 0x3400) return false;
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [c](const auto& range) { return c >= range.first && c <= range.second; });
}

class BertNormalizer : public Normalizer {
 public:
  struct Steps {
    bool clean_text, handle_chinese, strip_accents, lowercase;
  };
  explicit BertNormalizer(Steps steps) : steps_(steps) {}

  void apply(NormalizedString& text) const override {
    const bool ascii = std::all_of(text.bytes.begin(), text.bytes.end(), [](char byte) { return byte >= 0; });
    if (steps_.clean_text) map_characters(text, cleaned);
    if (steps_.handle_chinese && !ascii) put_blanks_around_chinese(text);
    if (steps_.strip_accents && !ascii) strip_accents(text);
    if (steps_.lowercase) lowercase_->apply(text);
  }

 private:
  static char32_t cleaned(char32_t c) {
    static const CodePointSet kControl(control_ranges());
    if (kControl.has(c)) return kRemoved;
    return is_whitespace(c) ? U' ' : c;
  }

  static void put_blanks_around_chinese(NormalizedString& text) {
    std::vector<NewPoint> points;
    bool found = false;
    for (size_t at = 0; at < text.bytes.size();) {
      const CodePoint point = code_point_at(text.bytes, at);
      at += point.size;
      if (is_chinese(point.value)) {
        found = true;
        points.insert(points.end(), {{U' ', 0}, {point.value, 1}, {U' ', 1}});
      } else {
        points.push_back({point.value, 0});
      }
    }
    if (found) text.rewrite(points);
  }

  static void strip_accents(NormalizedString& text) {
    static const CodePointSet kNonspacing(nonspacing_ranges());
    if (!is_normalized(text.bytes, NormalizationForm::kNfd))
      text.rewrite(normalize_unicode(text.bytes, NormalizationForm::kNfd));
    map_characters(text, [](char32_t c) { return kNonspacing.has(c) ? kRemoved : c; });
  }

  Steps steps_;
  std::unique_ptr<Normalizer> lowercase_ = make_lowercase();
};

class StripAccentsNormalizer : public Normalizer {
 public:
  void apply(NormalizedString& text) const override {
    static const CodePointSet kMark(mark_ranges());
    map_characters(text, [](char32_t c) { return kMark.has(c) ? kRemoved : c; });
  }
};

class NmtNormalizer : public Normalizer {
 public:
  void apply(NormalizedString& text) const override { map_characters(text, changed); }

 private:
  static char32_t changed(char32_t c) {
    if (c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D) return U' ';
    if ((c >= 0x01 && c < 0x20) || c == 0x7F || c == 0x8F || c == 0x9F) return kRemoved;
    if (c == 0x1680 || (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029) return U' ';
    return c == 0x2581 || c == 0xFEFF || c == 0xFFFD ? U' ' : c;
  }
};

}  // namespace

std::unique_ptr<Normalizer> read_bert_normalizer(const Json& json) {
  json.only({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  const bool lowercase = json.at<bool>("lowercase");
  return std::make_unique<BertNormalizer>(
      BertNormalizer::Steps{.clean_text = json.at<bool>("clean_text"),
                            .handle_chinese = json.at<bool>("handle_chinese_chars"),
                            .strip_accents = json.get<bool>("strip_accents", lowercase),  // null: as lowercase
                            .lowercase = lowercase});
}

std::unique_ptr<Normalizer> make_strip_accents() { return std::make_unique<StripAccentsNormalizer>(); }
std::unique_ptr<Normalizer> make_nmt() { return std::make_unique<NmtNormalizer>(); }

}  // namespace hotswap::tokenizers
