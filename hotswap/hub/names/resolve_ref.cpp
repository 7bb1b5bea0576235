// Which ref of a repository a version, a specifier or a name means (version.h).
#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/names/version.h"

namespace hotswap {
namespace {

const RepoRef* find_ref(const std::vector<RepoRef>& refs, std::string_view name) {
  const auto found = std::find_if(refs.begin(), refs.end(), [&](const RepoRef& ref) { return ref.name == name; });
  return found == refs.end() ? nullptr : &*found;
}

std::string names_of(const std::vector<RepoRef>& refs) {
  std::vector<std::string> names;
  for (const RepoRef& ref : refs) {
    if (names.size() == 20) {
      names.push_back(cat("and ", refs.size() - 20, " more"));
      break;
    }
    names.push_back(shown(ref.name));
  }
  return names.empty() ? "none" : join(names);
}

[[noreturn]] void not_found(const std::string& wanted, const RepoRefs& refs) {
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = wanted,
               .got = cat("branches: ", names_of(refs.branches), "; tags: ", names_of(refs.tags)),
               .next = "name one of these after '@'"});
}

struct Candidate {
  Version version;
  const RepoRef* ref;
  bool is_branch;
};

// Tags and branches v<version>. 'v' is required: a tag "2024" is no version; nor is a branch "v01", or "v1-dev".
std::vector<Candidate> candidates(const RepoRefs& refs) {
  std::vector<Candidate> all;
  for (const RepoRef& ref : refs.branches) {
    const auto version = ref.name.starts_with("v") ? Version::try_parse(ref.name) : std::nullopt;
    if (version && version->str() == ref.name.substr(1)) all.push_back({*version, &ref, true});
  }
  for (const RepoRef& ref : refs.tags) {
    if (!ref.name.starts_with("v")) continue;
    if (auto version = Version::try_parse(ref.name)) all.push_back({*version, &ref, false});
  }
  return all;
}

}  // namespace

bool is_commit(std::string_view text) { return text.size() == 40 && is_hex(text); }

std::optional<int64_t> version_of_branch(std::string_view name) {
  if (name.size() < 2 || name.size() > 10 || name[0] != 'v' || !all_digits(name.substr(1))) return std::nullopt;
  if (name[1] == '0' && name.size() > 2) return std::nullopt;
  return std::stoll(std::string(name.substr(1)));
}

std::vector<int64_t> branch_versions(const RepoRefs& refs) {
  std::vector<int64_t> versions;
  for (const RepoRef& ref : refs.branches) {
    if (const auto version = version_of_branch(ref.name)) versions.push_back(*version);
  }
  std::sort(versions.begin(), versions.end());
  return versions;
}

ResolvedRef resolve_version(const RepoRefs& refs, int64_t version, const std::string& repo) {
  const std::vector<int64_t> versions = branch_versions(refs);
  const std::string name = cat("v", version);
  const RepoRef* branch = find_ref(refs.branches, name);
  const RepoRef* ref = branch ? branch : find_ref(refs.tags, name);
  if (ref == nullptr) {
    if (versions.empty()) not_found(cat("version ", version, " of ", repo, ", which has no versions at all"), refs);
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = cat("version ", version, " of ", repo),
                 .got = cat("Version ", version, " not found, available versions: ", join(versions)),
                 .next = "use one of these"});
  }
  ResolvedRef result{.commit = ref->commit, .ref = name, .is_branch = branch != nullptr, .warning = {}};
  if (!versions.empty() && versions.back() > version) {
    result.warning =
        cat("You are using version ", version, " of '", repo, "', but version ", versions.back(), " is available.");
  }
  return result;
}

ResolvedRef resolve_specifier(const RepoRefs& refs, const std::string& specifier, const std::string& repo) {
  const SpecifierSet set = SpecifierSet::parse(specifier);
  const std::vector<Candidate> all = candidates(refs);
  std::vector<Version> versions;
  for (const Candidate& candidate : all) versions.push_back(candidate.version);
  const std::vector<Version> fitting = set.filter(versions);
  if (fitting.empty()) not_found(cat("a version of ", repo, " that fits '", specifier, "'"), refs);
  const Version best = *std::max_element(fitting.begin(), fitting.end());
  const auto rank = [&](const Candidate& candidate) {
    return std::pair(set.names(candidate.ref->name.substr(1)), candidate.is_branch);
  };
  const Candidate* chosen = nullptr;
  for (const Candidate& candidate : all) {
    if (candidate.version != best || !set.contains(candidate.version)) continue;  // ===2.0.0 is not 2, its equal
    if (chosen == nullptr || rank(candidate) > rank(*chosen)) chosen = &candidate;
  }
  return {.commit = chosen->ref->commit, .ref = chosen->ref->name, .is_branch = chosen->is_branch, .warning = {}};
}

ResolvedRef resolve_revision(const RepoRefs& refs, const std::string& revision, const std::string& repo) {
  if (is_commit(revision)) return {.commit = revision, .ref = revision, .is_branch = false, .warning = {}};
  const auto below = [&](std::string_view prefix) -> std::optional<std::string> {
    if (!revision.starts_with(prefix)) return std::nullopt;
    return revision.substr(prefix.size());
  };
  const auto head = below("refs/heads/"), tag = below("refs/tags/");
  const RepoRef* branch = tag ? nullptr : find_ref(refs.branches, head.value_or(revision));
  const RepoRef* found = branch ? branch : head ? nullptr : find_ref(refs.tags, tag.value_or(revision));
  if (found == nullptr) not_found(cat("a branch, tag or commit '", shown(revision), "' of ", repo), refs);
  return {.commit = found->commit, .ref = found->name, .is_branch = branch != nullptr, .warning = {}};
}

}  // namespace hotswap
