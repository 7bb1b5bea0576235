#include "hotswap/tokenizers/charsmap.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "hotswap/base/error.h"
#include "hotswap/tokenizers/base64.h"
#include "hotswap/tokenizers/code_point_set.h"
#include "hotswap/tokenizers/unicode.h"

namespace hotswap::tokenizers {
namespace {

// A unit of the double array of the darts-clone library: a node with its label, or the value of a leaf.
struct Unit {
  uint32_t bits;
  bool has_leaf() const { return (bits >> 8 & 1) != 0; }
  uint32_t value() const { return bits & 0x7FFFFFFF; }
  uint32_t label() const { return bits & 0x800000FF; }
  uint32_t offset() const { return (bits >> 10) << ((bits & 0x200) >> 6); }
};

class Charsmap {
 public:
  Charsmap(const std::string& table, std::string where) : where_(std::move(where)) {
    uint32_t size = 0;
    if (table.size() >= sizeof(size)) std::memcpy(&size, table.data(), sizeof(size));
    if (size < sizeof(Unit) || size % sizeof(Unit) != 0 || size > table.size() - sizeof(size)) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("a double array of whole units inside the table at ", where_),
                   .got = cat(size, " bytes of ", table.size()),
                   .next = "fetch the file again"});
    }
    units_.resize(size / sizeof(Unit));
    std::memcpy(units_.data(), table.data() + sizeof(size), size);
    texts_ = table.substr(sizeof(size) + size);
    if (const size_t bad = find_invalid_utf8(texts_); bad != std::string::npos) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("replacements in UTF-8 at ", where_),
                   .got = cat("other bytes from byte ", bad, " of them on"),
                   .next = "fetch the file again"});
    }
  }

  // What the text becomes: the replacement of the shortest key that it begins with.
  std::optional<std::string_view> find(std::string_view text) const {
    uint32_t at = unit(0).offset();
    for (const char byte : text) {
      const auto label = static_cast<uint8_t>(byte);
      if (label == 0) return std::nullopt;
      at ^= label;
      const Unit node = unit(at);
      if (node.label() != label) return std::nullopt;
      at ^= node.offset();
      if (node.has_leaf()) return replacement(unit(at).value());
    }
    return std::nullopt;
  }

 private:
  Unit unit(uint32_t at) const {
    if (at >= units_.size()) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("positions in the double array of ", units_.size(), " units at ", where_),
                   .got = cat(at),
                   .next = "fetch the file again"});
    }
    return units_[at];
  }
  std::string_view replacement(uint32_t at) const {
    if (at > texts_.size() || (at < texts_.size() && is_continuation(texts_[at]))) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("positions of characters in ", texts_.size(), " bytes of replacements at ", where_),
                   .got = cat(at),
                   .next = "fetch the file again"});
    }
    const std::string_view rest = std::string_view(texts_).substr(at);
    return rest.substr(0, rest.find('\0'));
  }

  std::vector<Unit> units_;
  std::string texts_;
  std::string where_;
};

// Controls by UAX 29 that have no character yet; utf8proc takes them for letters.
bool is_unassigned_control(char32_t c) {
  return c == 0x2065 || (c >= 0xFFF0 && c <= 0xFFF8) || c == 0xE0000 || (c >= 0xE0002 && c <= 0xE001F) ||
         (c >= 0xE0080 && c <= 0xE00FF) || (c >= 0xE01F0 && c <= 0xE0FFF);
}

// The end of the grapheme (UAX 29) that starts at `at`.
size_t grapheme_end(std::string_view text, size_t at) {
  constexpr char32_t kZeroWidthJoiner = 0x200D;  // which emoji need as itself
  static const CodePointSet kJoining(joining_ranges());
  const auto known = [](char32_t c) {  // utf8proc's tables may be older than the library's
    if (is_unassigned_control(c)) return utf8proc_int32_t{0};
    return static_cast<utf8proc_int32_t>(c != kZeroWidthJoiner && kJoining.has(c) ? char32_t{0x300} : c);
  };
  CodePoint point = code_point_at(text, at);
  utf8proc_int32_t state = 0;
  for (at += point.size; at < text.size(); at += point.size) {
    const CodePoint next = code_point_at(text, at);
    const bool ascii = point.value < 0x80 && next.value < 0x80;
    if (ascii ? !(point.value == '\r' && next.value == '\n')
              : utf8proc_grapheme_break_stateful(known(point.value), known(next.value), &state) != 0) {
      return at;
    }
    point = next;
  }
  return at;
}

class PrecompiledNormalizer : public Normalizer {
 public:
  explicit PrecompiledNormalizer(Charsmap charsmap) : charsmap_(std::move(charsmap)) {
    for (uint8_t byte = 0; byte < kAscii; ++byte) {
      const char c = static_cast<char>(byte);
      leaves_[byte] = !charsmap_.find({&c, 1});
    }
    leaves_['\r'] = false;  // a grapheme with a newline after it
  }

  // ASCII of which no character has a replacement: most of most texts.
  bool leaves(std::string_view text) const override {
    return std::all_of(text.begin(), text.end(), [&](char c) {
      const auto byte = static_cast<uint8_t>(c);
      return byte < kAscii && leaves_[byte];
    });
  }

  void apply(NormalizedString& text) const override {
    std::vector<NewPoint> points;
    points.reserve(text.bytes.size());
    bool modified = false;
    const auto replace = [&](std::string_view part) {
      const auto found = charsmap_.find(part);
      if (found) put(points, part, *found);
      modified = modified || found;
      return found.has_value();
    };
    const std::string_view bytes = text.bytes;
    for (size_t at = 0; at < bytes.size();) {
      const size_t end = grapheme_end(bytes, at);
      if (end - at < kLongestWhole && replace(bytes.substr(at, end - at))) {
        at = end;
        continue;
      }
      while (at < end) {
        const CodePoint point = code_point_at(bytes, at);
        if (!replace(bytes.substr(at, point.size))) points.push_back({point.value, 0});
        at += point.size;
      }
    }
    if (modified) text.rewrite(points);
  }

 private:
  static constexpr uint8_t kAscii = 128;
  static constexpr size_t kLongestWhole = 6;  // bytes from which on a grapheme is not looked up as a whole

  static size_t count_characters(std::string_view text) {
    return static_cast<size_t>(
        std::count_if(text.begin(), text.end(), [](char byte) { return !is_continuation(byte); }));
  }

  // The characters of `to` stand for those of `from`, one by one. Of more the last ones are insertions; of fewer the
  // last one stands for the rest as well, or where there is none, the character before.
  static void put(std::vector<NewPoint>& points, std::string_view from, std::string_view to) {
    for (size_t at = 0; at < to.size();) {
      const CodePoint point = code_point_at(to, at);
      points.push_back({point.value, 0});
      at += point.size;
    }
    const size_t before = count_characters(from);
    const size_t after = count_characters(to);
    for (size_t i = before; i < after; ++i) points[points.size() - 1 - (i - before)].change = 1;
    if (after < before && !points.empty()) points.back().change -= static_cast<int>(before - after);
  }

  Charsmap charsmap_;
  std::array<bool, kAscii> leaves_{};  // by character
};

}  // namespace

std::unique_ptr<Normalizer> read_precompiled(const Json& json) {
  json.only({"type", "precompiled_charsmap"});
  const Json table = json.child("precompiled_charsmap");
  return std::make_unique<PrecompiledNormalizer>(
      Charsmap(decode_base64(table.as<std::string>(), table.where()), table.where()));
}

}  // namespace hotswap::tokenizers
