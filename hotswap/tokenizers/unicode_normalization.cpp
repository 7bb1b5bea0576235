#include "hotswap/tokenizers/unicode_normalization.h"

#include <utf8proc.h>

#include <algorithm>

#include "hotswap/tokenizers/code_point_set.h"
#include "hotswap/tokenizers/unicode.h"

namespace hotswap::tokenizers {
namespace {

struct Decomposed {
  char32_t value;
  int change;
  uint8_t combining;  // canonical combining class
};

uint8_t combining_class(char32_t c) {
  static const CodePointSet kCombining(combining_ranges());
  return c < 0x300 || !kCombining.has(c)
             ? 0
             : static_cast<uint8_t>(utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class);
}

// Whether the library decomposes it: its tables are older than utf8proc's, and what came later stays whole.
bool decomposes(char32_t c, bool compatible) {
  static const CodePointSet kDecomposed(decomposed_ranges()), kCompatible(compatible_ranges());
  return compatible ? kCompatible.has(c) : kDecomposed.has(c);
}

std::vector<Decomposed> decompose(std::string_view text, bool compatible) {
  std::vector<Decomposed> out;
  out.reserve(text.size());
  size_t pending = 0;  // start of the run of combining marks at the end
  const auto sort_pending = [&] {
    std::stable_sort(out.begin() + static_cast<std::ptrdiff_t>(pending), out.end(),
                     [](const Decomposed& a, const Decomposed& b) { return a.combining < b.combining; });
    pending = out.size();
  };
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    at += point.size;
    utf8proc_int32_t parts[32] = {static_cast<utf8proc_int32_t>(point.value)};
    utf8proc_ssize_t count = 1;
    if (point.value >= 0x80 && decomposes(point.value, compatible)) {
      int last_boundclass = 0;
      const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0));
      count = utf8proc_decompose_char(parts[0], parts, 32, options, &last_boundclass);
    }
    for (utf8proc_ssize_t i = 0; i < count; ++i) {
      const auto value = static_cast<char32_t>(parts[i]);
      const uint8_t combining = combining_class(value);
      if (combining == 0) sort_pending();
      out.push_back({value, i == 0 ? 0 : 1, combining});
    }
  }
  sort_pending();
  return out;
}

// The character that two become, 0 when they stay two.
char32_t compose(char32_t first, char32_t second) {
  if (second < 0x300) return 0;
  utf8proc_int32_t pair[3] = {static_cast<utf8proc_int32_t>(first), static_cast<utf8proc_int32_t>(second), 0};
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  if (utf8proc_normalize_utf32(pair, 2, options) != 1) return 0;
  const auto joined = static_cast<char32_t>(pair[0]);
  return decomposes(joined, /*compatible=*/false) ? joined : 0;  // it composes what it decomposes
}

std::vector<NewPoint> recompose(const std::vector<Decomposed>& in) {
  std::vector<NewPoint> out;
  out.reserve(in.size());
  size_t starter = in.size();  // index in out of the character that marks may join
  uint8_t last = 0;            // class of the last mark that did not join; 0: none
  for (const Decomposed& next : in) {
    if (starter < in.size() && (last == 0 || last < next.combining)) {
      if (const char32_t joined = compose(out[starter].value, next.value)) {
        out[starter] = {joined, out[starter].change + next.change - 1};
        continue;
      }
    }
    if (next.combining == 0) {
      starter = out.size();
      last = 0;
    } else if (starter < in.size()) {
      last = next.combining;
    }
    out.push_back({next.value, next.change});
  }
  return out;
}

}  // namespace

std::vector<NewPoint> normalize_unicode(std::string_view text, NormalizationForm form) {
  const bool compatible = form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd;
  const std::vector<Decomposed> parts = decompose(text, compatible);
  if (form == NormalizationForm::kNfc || form == NormalizationForm::kNfkc) return recompose(parts);
  std::vector<NewPoint> out;
  out.reserve(parts.size());
  for (const Decomposed& part : parts) out.push_back({part.value, part.change});
  return out;
}

bool is_normalized(std::string_view text, NormalizationForm form) {
  const bool composed = form == NormalizationForm::kNfc || form == NormalizationForm::kNfkc;
  const bool compatible = form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd;
  const char32_t safe = form == NormalizationForm::kNfc ? 0x300 : 0x80;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    at += point.size;
    if (point.value < safe) continue;
    if (point.value >= 0x1100 && point.value <= 0x11FF) return false;               // jamo
    if (point.value >= 0xAC00 && point.value <= 0xD7A3 && !composed) return false;  // Hangul syllables
    const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(point.value));
    if (property->combining_class != 0) return false;
    if (property->decomp_seqindex != UINT16_MAX && (compatible || property->decomp_type == 0)) return false;
    if (composed && property->comb_index != UINT16_MAX) return false;
  }
  return true;
}

}  // namespace hotswap::tokenizers
