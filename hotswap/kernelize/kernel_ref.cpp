#include "hotswap/kernelize/kernel_ref.h"

#include <algorithm>
#include <cctype>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

constexpr const char* kForms = "a kernel as 'org/repo[@revision][:Layer]', '/abs/path:Layer' or '' for stock";

[[noreturn]] void refuse(std::string_view text, const std::string& why, const char* wanted = kForms) {
  throw Error({.wanted = wanted, .got = cat("'", text, "': ", why), .next = "correct the mapping"});
}

bool is_identifier(std::string_view s) {
  if (s.empty() || std::isdigit(static_cast<unsigned char>(s[0]))) return false;
  return std::all_of(s.begin(), s.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

// The Hub's rule for each half of a repository's name.
bool is_repo_part(std::string_view s) {
  if (s.empty() || s.front() == '-' || s.front() == '.' || s.back() == '-' || s.back() == '.') return false;
  if (s.find("--") != s.npos || s.find("..") != s.npos || s.ends_with(".git")) return false;
  return std::all_of(s.begin(), s.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.'; });
}

std::string normalized(std::string_view repo) {
  std::string result(repo);
  std::replace(result.begin(), result.end(), '_', '-');
  return result;
}

}  // namespace

KernelRef::KernelRef(const char* text) : KernelRef(std::string_view(text), KernelRefOptions{}) {}
KernelRef::KernelRef(const std::string& text) : KernelRef(std::string_view(text), KernelRefOptions{}) {}

KernelRef::KernelRef(std::string_view text, KernelRefOptions options) {
  if (options.version && !options.revision.empty()) {
    refuse(text, "both a version and a revision are given", "only one of `revision` or `version`");
  }
  if (options.version && *options.version < 0) refuse(text, cat("version ", *options.version, " is negative"));
  trust_ = options.trust;
  if (text.empty()) return;
  if (text.front() == '/') {
    const size_t colon = text.rfind(':');
    const bool has_layer = colon != text.npos && is_identifier(text.substr(colon + 1));
    path_ = text.substr(0, has_layer ? colon : text.npos);
    if (has_layer) layer_ = text.substr(colon + 1);
  } else {
    parse_repo(text);
  }
  if (options.version || !options.revision.empty()) {
    if (!revision_.empty() || version_) {
      refuse(text, "a version or revision is given beside '@'", "only one of `revision` or `version`");
    }
    version_ = options.version;
    revision_ = options.revision;
  }
}

void KernelRef::parse_repo(std::string_view text) {
  std::string_view rest = text;
  // The revision may hold anything but ':', which no git ref holds, so the layer is what follows the last one.
  if (const size_t colon = rest.rfind(':'); colon != rest.npos) {
    layer_ = rest.substr(colon + 1);
    if (!is_identifier(layer_)) refuse(text, cat("the layer's name '", layer_, "' is not an identifier"));
    rest = rest.substr(0, colon);
  }
  if (const size_t at = rest.find('@'); at != rest.npos) {
    revision_ = rest.substr(at + 1);
    if (revision_.empty()) refuse(text, "nothing follows '@'");
    rest = rest.substr(0, at);
    const std::string_view digits = std::string_view(revision_).substr(1);
    if (revision_[0] == 'v' && !digits.empty() && digits.size() <= 9 && (digits[0] != '0' || digits.size() == 1) &&
        std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isdigit(c); })) {
      version_ = std::stoll(std::string(digits));
      revision_.clear();
    }
  }
  const size_t slash = rest.find('/');
  if (slash == rest.npos) refuse(text, "there is no 'org/' before the repository's name");
  if (!is_repo_part(rest.substr(0, slash)) || !is_repo_part(rest.substr(slash + 1)) || rest.size() > 96) {
    refuse(text, cat("'", rest, "' is no valid repository name"));
  }
  repo_ = rest;
}

std::string KernelRef::str() const {
  std::string text = is_path() ? path_ : repo_;
  if (version_) text += cat("@v", *version_);
  if (!revision_.empty()) text += "@" + revision_;
  if (!layer_.empty()) text += ":" + layer_;
  return text;
}

bool same_repo(std::string_view a, std::string_view b) { return normalized(a) == normalized(b); }

}  // namespace hotswap
