#include "hotswap/hub/names/repo.h"

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

bool is_name_char(char c) { return is_alpha(c) || is_digit(c) || c == '.' || c == '_' || c == '-'; }

bool is_name_part(std::string_view part) {
  if (part.empty() || !std::all_of(part.begin(), part.end(), is_name_char)) return false;
  for (const char end : {part.front(), part.back()}) {
    if (end == '-' || end == '.') return false;
  }
  return true;
}

// One character of a pattern: '?', a set, or itself. Moves `at` behind it.
bool matches_one(char c, std::string_view pattern, size_t& at) {
  if (pattern[at] == '?') return ++at, true;
  if (pattern[at] != '[') return pattern[at++] == c;
  size_t i = at + 1;
  const bool negated = i < pattern.size() && pattern[i] == '!';
  if (negated) ++i;
  const size_t close = pattern.find(']', i + 1);  // a ']' right after the '[' is one of the set
  if (i >= pattern.size() || close == std::string_view::npos) return pattern[at++] == c;
  bool found = false;
  for (; i < close; ++i) {
    if (i + 2 < close && pattern[i + 1] == '-') {
      found = found || (pattern[i] <= c && c <= pattern[i + 2]);
      i += 2;
    } else {
      found = found || pattern[i] == c;
    }
  }
  at = close + 1;
  return found != negated;
}

}  // namespace

const char* plural(RepoType type) {
  switch (type) {
    case RepoType::kDataset:
      return "datasets";
    case RepoType::kSpace:
      return "spaces";
    case RepoType::kKernel:
      return "kernels";
    default:
      return "models";
  }
}

std::string download_prefix(RepoType type) { return type == RepoType::kModel ? "" : cat(plural(type), "/"); }

std::string repo_folder_name(const Repo& repo) {
  check_repo(repo);
  std::string name = plural(repo.type) + ("--" + repo.id);
  if (const size_t slash = name.find('/'); slash != std::string::npos) name.replace(slash, 1, "--");
  return name;
}

std::string publisher_of(const Repo& repo) {
  const size_t slash = repo.id.find('/');
  return slash == std::string::npos ? "" : repo.id.substr(0, slash);
}

void check_repo(const Repo& repo) {
  const std::string& id = repo.id;
  const size_t slash = id.find('/');
  const std::string_view whole = id;
  const bool parts = slash == std::string::npos
                         ? is_name_part(whole)
                         : is_name_part(whole.substr(0, slash)) && is_name_part(whole.substr(slash + 1));
  const bool git = id.size() >= 4 && id.compare(id.size() - 4, 4, ".git") == 0;
  if (parts && !git && id.size() <= 96 && id.find("--") == std::string::npos && id.find("..") == std::string::npos)
    return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "a repository name as org/name, of letters, digits, '.', '_' and '-'",
               .got = "'" + id.substr(0, 200) + "'",
               .next = "copy the name from the repository's page"});
}

void check_relative_path(std::string_view path, std::string_view what) {
  const auto refuse = [&](const char* why) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("a ", what, " name that stays inside its folder"),
                 .got = cat("'", path.substr(0, 200), "', ", why),
                 .next = "nothing was written; tell the repository's owner"});
  };
  if (path.empty()) refuse("which is empty");
  if (path.size() > 2048) refuse("which is too long");
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) refuse("which has a control character");
    if (c == '\\') refuse("which has a backslash");
  }
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view segment = path.substr(begin, end - begin);
    if (segment.empty()) refuse(begin == 0 ? "which is absolute" : "which has an empty segment");
    if (segment == "." || segment == "..") refuse("which has a segment of dots");
    if (segment.size() > 255) refuse("which has a segment of more than 255 bytes");
    if (segment.size() >= 2 && segment[1] == ':') refuse("which names a drive");
    begin = end + 1;
  }
}

bool matches_pattern(std::string_view path, std::string_view given) {
  std::string slashed;
  std::string_view pattern = given;
  if (!given.empty() && given.back() == '/') pattern = slashed = cat(given, "*");
  // Greedy with one point to come back to: linear in practice, quadratic at worst, never exponential.
  size_t p = 0, c = 0, star = std::string_view::npos, star_c = 0;
  while (c < path.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      star_c = c;
      continue;
    }
    size_t after = p;
    if (p < pattern.size() && matches_one(path[c], pattern, after)) {
      p = after;
      ++c;
    } else if (star != std::string_view::npos) {
      p = star;
      c = ++star_c;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool is_selected(std::string_view path, const std::vector<std::string>& allow, const std::vector<std::string>& ignore) {
  const auto hit = [&](const std::string& pattern) { return matches_pattern(path, pattern); };
  return (allow.empty() || std::any_of(allow.begin(), allow.end(), hit)) &&
         std::none_of(ignore.begin(), ignore.end(), hit);
}

}  // namespace hotswap
