#include "hotswap/hub/names/version.h"

#include <algorithm>
#include <charconv>

#include "hotswap/base/error.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {

// One pass over the text, without a regular expression: those of the standard library overflow the stack on long input.
class VersionReader {
 public:
  explicit VersionReader(std::string_view text) : text_(lower(trim(text))) {}

  std::optional<Version> read() {
    if (at_ < text_.size() && text_[at_] == 'v') ++at_;
    auto number = digits();
    if (!number) return std::nullopt;
    if (take('!')) {
      v_.epoch_ = *number;
      if (!(number = digits())) return std::nullopt;
    }
    v_.release_.push_back(*number);
    while (at_ + 1 < text_.size() && text_[at_] == '.' && is_digit(text_[at_ + 1])) {
      ++at_;
      if (!(number = digits())) return std::nullopt;
      v_.release_.push_back(*number);
    }
    if (!pre() || !post() || !dev() || !local() || at_ != text_.size()) return std::nullopt;
    return std::move(v_);
  }

 private:
  // Each part: nothing of it there (true), read (true), or there and broken (false).
  bool pre() {
    // A longer name comes before those that it starts with.
    static constexpr std::pair<const char*, const char*> kNames[] = {{"alpha", "a"}, {"beta", "b"}, {"preview", "rc"},
                                                                     {"pre", "rc"},  {"rc", "rc"},  {"a", "a"},
                                                                     {"b", "b"},     {"c", "rc"}};
    for (const auto& [name, normal] : kNames) {
      if (const auto number = named(name)) {
        v_.pre_ = {normal, number->value_or(0)};
        return !overflow_;
      }
    }
    return true;
  }

  bool post() {
    if (at_ + 1 < text_.size() && text_[at_] == '-' && is_digit(text_[at_ + 1])) {  // "1.0-1"
      ++at_;
      v_.post_ = digits();
      return v_.post_.has_value();
    }
    for (const char* name : {"post", "rev", "r"}) {
      if (const auto number = named(name)) {
        v_.post_ = number->value_or(0);
        return !overflow_;
      }
    }
    return true;
  }

  bool dev() {
    if (const auto number = named("dev")) v_.dev_ = number->value_or(0);
    return !overflow_;
  }

  bool local() {
    if (!take('+')) return true;
    std::string part;
    for (; at_ <= text_.size(); ++at_) {
      const char c = at_ < text_.size() ? text_[at_] : '.';
      if (is_digit(c) || is_letter(c)) {
        part += c;
      } else if ((c == '.' || c == '-' || c == '_') && !part.empty()) {
        if (std::all_of(part.begin(), part.end(), is_digit)) {
          if (part.size() > 18) return false;
          part = std::to_string(std::stoull(part));
        }
        v_.local_.push_back(std::exchange(part, {}));
      } else {
        return false;
      }
    }
    at_ = text_.size();
    return true;
  }

  // [separator] name [separator] [number]; the inner optional is the number. None, and nothing read, where it is not.
  std::optional<std::optional<uint64_t>> named(std::string_view name) {
    size_t p = at_;
    if (p < text_.size() && is_separator(text_[p])) ++p;
    if (std::string_view(text_).substr(p, name.size()) != name) return std::nullopt;
    p += name.size();
    at_ = p;
    if (p < text_.size() && is_separator(text_[p])) ++at_;
    if (at_ < text_.size() && is_digit(text_[at_])) {
      const auto number = digits();
      overflow_ = overflow_ || !number;
      return number;
    }
    return std::optional<uint64_t>();
  }

  std::optional<uint64_t> digits() {
    const size_t start = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    if (at_ == start || at_ - start > 18) return std::nullopt;
    uint64_t value = 0;
    std::from_chars(text_.data() + start, text_.data() + at_, value);
    return value;
  }

  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  static bool is_separator(char c) { return c == '.' || c == '-' || c == '_'; }
  static bool is_letter(char c) { return c >= 'a' && c <= 'z'; }

  std::string text_;
  size_t at_ = 0;
  bool overflow_ = false;
  Version v_;
};

std::optional<Version> Version::try_parse(std::string_view text) {
  if (text.size() > 256) return std::nullopt;
  return VersionReader(text).read();
}

Version Version::parse(std::string_view text) {
  if (auto version = try_parse(text)) return *version;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "a version as 1.2, 2.0rc1, 1.0.post1 or 1.0.dev3",
               .got = "'" + shown(text) + "'",
               .next = "write it as Python packages do"});
}

std::string Version::str() const {
  std::string text = epoch_ ? cat(epoch_, "!") : "";
  text += join(release_, ".");
  if (pre_) text += cat(pre_->first, pre_->second);
  if (post_) text += cat(".post", *post_);
  if (dev_) text += cat(".dev", *dev_);
  if (!local_.empty()) text += "+" + join(local_, ".");
  return text;
}

Version Version::public_part() const {
  Version v = *this;
  v.local_.clear();
  return v;
}

Version Version::base() const {
  Version v;
  v.epoch_ = epoch_;
  v.release_ = release_;
  return v;
}

bool Version::is_prerelease_of(const Version& release) const {
  return is_prerelease() && base() == release.base() &&
         (!release.post_ || (post_ == release.post_ && pre_ == release.pre_));
}

bool Version::is_postrelease_of(const Version& release) const {
  return is_postrelease() && !release.dev_ && pre_ == release.pre_ && base() == release.base();
}

std::strong_ordering Version::operator<=>(const Version& other) const {
  if (const auto c = epoch_ <=> other.epoch_; c != 0) return c;
  for (size_t i = 0; i < std::max(release_.size(), other.release_.size()); ++i) {
    const uint64_t a = i < release_.size() ? release_[i] : 0, b = i < other.release_.size() ? other.release_[i] : 0;
    if (a != b) return a <=> b;
  }
  // 1.0.dev1 < 1.0a1 < 1.0 < 1.0.post1: a bare dev release comes before every pre-release, a final one after.
  const auto pre_rank = [](const Version& v) { return v.pre_ ? 1 : !v.post_ && v.dev_ ? 0 : 2; };
  if (const auto c = pre_rank(*this) <=> pre_rank(other); c != 0) return c;
  if (pre_ && *pre_ != *other.pre_)
    return *pre_ < *other.pre_ ? std::strong_ordering::less : std::strong_ordering::greater;
  if (post_ != other.post_) return post_ < other.post_ ? std::strong_ordering::less : std::strong_ordering::greater;
  if (dev_ != other.dev_) {  // none is the highest
    if (!dev_ || !other.dev_) return dev_ ? std::strong_ordering::less : std::strong_ordering::greater;
    return *dev_ <=> *other.dev_;
  }
  for (size_t i = 0; i < std::max(local_.size(), other.local_.size()); ++i) {
    if (i >= local_.size()) return std::strong_ordering::less;
    if (i >= other.local_.size()) return std::strong_ordering::greater;
    const std::string &a = local_[i], &b = other.local_[i];
    if (a == b) continue;
    const bool a_number = is_digit(a[0]) && std::all_of(a.begin(), a.end(), is_digit);
    const bool b_number = is_digit(b[0]) && std::all_of(b.begin(), b.end(), is_digit);
    if (a_number != b_number) return a_number ? std::strong_ordering::greater : std::strong_ordering::less;
    if (a_number) return std::stoull(a) <=> std::stoull(b);
    return a < b ? std::strong_ordering::less : std::strong_ordering::greater;
  }
  return std::strong_ordering::equal;
}

}  // namespace hotswap
