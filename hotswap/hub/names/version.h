// Versions and specifiers as Python packages write them (PEP 440), and which of a repository's refs they mean.
//
//   Version::parse("1.0rc1") < Version::parse("1.0")
//   SpecifierSet::parse(">=2.0,<3.0").contains(Version::parse("2.4"))
//   resolve_specifier(refs, ">=2.0,<3.0", "org/repo").commit
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hotswap {

class Version {
 public:
  // Every spelling that PEP 440 allows ("v1.0-Alpha.1" is 1.0a1). Numbers have at most 18 digits.
  static std::optional<Version> try_parse(std::string_view text);
  static Version parse(std::string_view text);  // Error where try_parse has none

  std::string str() const;      // the normal form: "1!2.0rc1.post2.dev3+local.4"
  Version public_part() const;  // without "+local"
  Version base() const;         // epoch and release alone
  bool is_prerelease() const { return pre_.has_value() || dev_.has_value(); }
  bool is_postrelease() const { return post_.has_value(); }
  bool has_local() const { return !local_.empty(); }
  uint64_t epoch() const { return epoch_; }
  const std::vector<uint64_t>& release() const { return release_; }
  bool is_prerelease_of(const Version& release) const;   // 2.0rc1 of 2.0, 2.0.post1.dev1 of 2.0.post1
  bool is_postrelease_of(const Version& release) const;  // 2.0.post1 of 2.0, 2.0rc1.post1 of 2.0rc1

  std::strong_ordering operator<=>(const Version& other) const;
  bool operator==(const Version& other) const { return (*this <=> other) == std::strong_ordering::equal; }

 private:
  friend class VersionReader;
  uint64_t epoch_ = 0;
  std::vector<uint64_t> release_;
  std::optional<std::pair<std::string, uint64_t>> pre_;  // {"a" | "b" | "rc", number}
  std::optional<uint64_t> post_, dev_;
  std::vector<std::string> local_;
};

class SpecifierSet {
 public:
  static SpecifierSet parse(
      std::string_view text);  // "~=1.4", "==2.*", ">=1, !=1.3, <2"; Error that lists the operators

  // Pre-releases are taken as asked by the caller; filter() has PEP 440's rule for them.
  bool contains(const Version& version) const;
  // Those that match. Pre-releases only where the specifier names one, or where nothing else matches.
  std::vector<Version> filter(const std::vector<Version>& versions) const;
  bool names(std::string_view text) const;  // does an == or === spell the version so?
  // The first number that a version must have at least: 2 of ">=2.0,<3.0" and of "~=2.1"; 0 where any may be lower.
  uint64_t least_major() const;

 private:
  struct One {
    std::string op, text;
    std::optional<Version> version;  // none for ===
    bool prefix = false;             // ".*"
    bool contains(const Version& candidate) const;
  };
  static One parse_one(std::string_view text, std::string_view whole);
  std::vector<One> all_;
};

// What the Hub's refs request answers.
struct RepoRef {
  std::string name, commit;  // "v2", 40 hex digits
};
struct RepoRefs {
  std::vector<RepoRef> branches, tags;
};

struct ResolvedRef {
  std::string commit;
  std::string ref;  // "v2": the branch or tag that was taken
  bool is_branch = false;
  std::string warning;  // a newer version exists; empty where none does
};

// Version N is the branch vN, or the tag vN where no such branch is; names are strict: v01 and v1_0 are no versions.
ResolvedRef resolve_version(const RepoRefs& refs, int64_t version, const std::string& repo);
// The highest of tags v<version> and branches v<version>, these in the version's normal form, that matches. Of equal
// ones (v2 and v2.0.0) the one that an == or === spells wins, then a branch.
ResolvedRef resolve_specifier(const RepoRefs& refs, const std::string& specifier, const std::string& repo);
// A branch or tag by its name ("main", "refs/heads/main", "v1.2.3"); a branch wins. A commit is returned as it is.
ResolvedRef resolve_revision(const RepoRefs& refs, const std::string& revision, const std::string& repo);

std::vector<int64_t> branch_versions(const RepoRefs& refs);  // N of branches vN, ascending
std::optional<int64_t> version_of_branch(std::string_view name);
bool is_commit(std::string_view text);  // 40 hex digits, lower case

}  // namespace hotswap
