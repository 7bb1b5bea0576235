// A repository of a Hub and the names that its parts may have. What comes from a server or a user and becomes a path on
// our disk or in a URL passes one of these checks first.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hotswap {

enum class RepoType {
  kModel,
  kDataset,
  kSpace,
  kKernel,
  kOldKernel,  // a kernel as Python's kernels before 0.14 cached it: as a model. Found offline, never asked for
};

struct Repo {
  RepoType type = RepoType::kModel;
  std::string id;  // "org/name" or "name"
  bool operator==(const Repo&) const = default;
};

// A file of a repository, or a folder, as the Hub lists it.
struct TreeEntry {
  std::string path;  // from the repository's root; checked by check_relative_path
  bool folder = false;
  int64_t size = 0;
  std::string oid = {};     // git's SHA-1 of the blob or tree
  std::string sha256 = {};  // of a large (LFS) file's content; empty for others
  int64_t lfs_size = 0;     // of that content
  std::string xet_hash = {};
  const std::string& etag() const { return sha256.empty() ? oid : sha256; }  // the blob's name in the cache
  bool operator==(const TreeEntry&) const = default;
};

// Above it a size is a mistake: no file system here holds such a file, and sums of a list's sizes stay in their type.
inline constexpr int64_t kMaxFileBytes = int64_t{1} << 44;

const char* plural(RepoType type);           // "models": the segment of /api/ and of the cache's folder names
std::string download_prefix(RepoType type);  // "" for models, else "kernels/" and so on
std::string repo_folder_name(const Repo&);   // "kernels--org--name"
std::string publisher_of(const Repo&);       // "org"; empty for "name"

// Error unless id is "name" or "org/name" of [A-Za-z0-9._-], at most 96 characters, without "--" and "..", not ending
// in ".git", no part starting or ending with '-' or '.'.
void check_repo(const Repo& repo);

// Error unless `path` stays inside the folder that it is joined to, on POSIX and on Windows: relative, no "..", no
// empty segment, no drive, no backslash, no control character. `what` names it in the message: "file", "revision".
void check_relative_path(std::string_view path, std::string_view what);

// fnmatch as Python has it: case matters, '*' crosses '/', [a-z], [!a-z]. A pattern that ends in '/' gets a '*'.
bool matches_pattern(std::string_view path, std::string_view pattern);

// allow empty: everything is allowed; then whatever `ignore` matches is taken out.
bool is_selected(std::string_view path, const std::vector<std::string>& allow, const std::vector<std::string>& ignore);

}  // namespace hotswap
