#include "hotswap/hub/names/kernel_ref.h"

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/names/version.h"

namespace hotswap {
namespace {

constexpr const char* kForms = "a kernel as 'org/repo[@revision][:Layer]', '/abs/path:Layer' or '' for stock";
constexpr const char* kRevisions =
    "after '@' a version (v2), versions (>=2.0,<3.0), a tag, a branch or a commit of 40 hex digits";

[[noreturn]] void refuse_reference(std::string_view text, const std::string& why, const char* wanted = kForms) {
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = wanted,
               .got = cat("'", shown(text), "': ", why),
               .next = "correct the mapping"});
}

// The Hub's rule for each half of a repository's name.
bool is_repo_part(std::string_view s) {
  if (s.empty() || s.front() == '-' || s.front() == '.' || s.back() == '-' || s.back() == '.') return false;
  if (s.find("--") != s.npos || s.find("..") != s.npos || s.ends_with(".git")) return false;
  return std::all_of(s.begin(), s.end(),
                     [](char c) { return is_digit(c) || is_alpha(c) || c == '_' || c == '-' || c == '.'; });
}

bool starts_specifier(std::string_view revision) {
  return !revision.empty() && std::string_view("<>=!~").find(revision[0]) != std::string_view::npos;
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
    refuse_reference(text, "both a version and a revision are given", "only one of `revision` or `version`");
  }
  if (options.version && *options.version < 0)
    refuse_reference(text, cat("version ", *options.version, " is negative"));
  trust_ = options.trust;
  locked_ = options.locked;
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
      refuse_reference(text, "a version or revision is given beside '@'", "only one of `revision` or `version`");
    }
    version_ = options.version;
    revision_ = options.revision;
  }
  check_revision(text);
}

void KernelRef::parse_repo(std::string_view text) {
  std::string_view rest = text;
  // The revision may hold anything but ':', which no git ref holds, so the layer is what follows the last one.
  if (const size_t colon = rest.rfind(':'); colon != rest.npos) {
    layer_ = rest.substr(colon + 1);
    if (!is_identifier(layer_)) refuse_reference(text, cat("the layer's name '", layer_, "' is not an identifier"));
    rest = rest.substr(0, colon);
  }
  if (const size_t at = rest.find('@'); at != rest.npos) {
    revision_ = rest.substr(at + 1);
    if (revision_.empty()) refuse_reference(text, "nothing follows '@'");
    rest = rest.substr(0, at);
    if ((version_ = version_of_branch(revision_))) revision_.clear();
  }
  if (rest.find('/') == rest.npos) {
    refuse_reference(
        text, cat("there is no 'org/' before the repository's name; a bundled package is hotswap/", shown(rest)));
  }
  if (rest.starts_with("./") || rest.starts_with("../") || rest.starts_with("~/")) {
    refuse_reference(text, "a folder is written from '/' on");
  }
  if (!is_repo_id(rest)) refuse_reference(text, cat("'", shown(rest), "' is no valid repository name"));
  repo_ = rest;
}

void KernelRef::check_revision(std::string_view text) const {
  if (starts_specifier(revision_)) {
    SpecifierSet::parse(revision_);
  } else if (!revision_.empty() && !is_ref_name(revision_)) {
    refuse_reference(text, cat("'", shown(revision_), "' can name no branch, tag or commit"), kRevisions);
  }
}

bool KernelRef::is_specifier() const { return starts_specifier(revision_); }

std::string KernelRef::str() const {
  std::string text = is_path() ? path_ : repo_;
  if (version_) text += cat("@v", *version_);
  if (!revision_.empty()) text += "@" + revision_;
  if (!layer_.empty()) text += ":" + layer_;
  return text;
}

bool same_repo(std::string_view a, std::string_view b) { return normalized(a) == normalized(b); }

bool is_repo_id(std::string_view text) {
  const size_t slash = text.find('/');
  return slash != text.npos && text.size() <= 96 && is_repo_part(text.substr(0, slash)) &&
         is_repo_part(text.substr(slash + 1));
}

bool is_ref_name(std::string_view text) {
  if (text.empty() || text.size() > 244 || text == "@" || text.back() == '.') return false;
  for (const char* never : {"..", "@{"}) {
    if (text.find(never) != text.npos) return false;
  }
  for (const char c : text) {
    if ((c >= 0 && c <= ' ') || c == 127 || std::string_view("~^:?*[\\").find(c) != std::string_view::npos)
      return false;
  }
  const auto parts = split(text, '/');
  return std::all_of(parts.begin(), parts.end(), [](const std::string& part) {
    return !part.empty() && part.front() != '.' && !part.ends_with(".lock");
  });
}

}  // namespace hotswap
