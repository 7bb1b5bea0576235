// kernels.lock, in both of its forms, and where projects name the kernels that they depend on.
//
// Variants, what `kernels lock` writes and reads up to its release 0.16:
//   [{"repo_id": "org/k", "sha": "<commit>", "variants": {"torch211-...": {"hash": "sha256-<hex>",
//     "hash_type": "git_lfs_concat"}}}]
// Dependencies, the same from 0.17 on; sorted, each once:
//   [{"dependency": {"repo-id": "org/k", "version": 1}, "lock": {"commit": "<commit>"}}]      or "path": "/folder"
//
// git_lfs_concat of a variant: for each of its files, sorted by the bytes of its path below the variant, the path and
// the raw hash that git knows it by: the sha256 of what LFS holds, else git's sha1 of the blob. The sha256 of all that.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hotswap/base/json.h"
#include "hotswap/hub/names/repo.h"
#include "hotswap/hub/package/files_in_memory.h"

namespace hotswap {

struct Dependency {  // exactly one of version, revision
  std::string repo;
  std::optional<int64_t> version = std::nullopt;
  std::string revision = {};
  auto key() const { return std::tuple(repo, version, revision); }
  std::string str() const;  // "org/k@v1"
};

struct LockedKernel {
  Dependency dependency;                        // of the form Variants: the repository alone
  std::string commit;                           // 40 hex digits; empty for a path
  std::map<std::string, std::string> variants;  // variant -> "sha256-<hex>"
  std::string hash;                             // Dependencies: an SRI hash of a Nix path, kept but not ours to check
  std::string path;                             // Dependencies: a folder instead of a commit

  // Are its files pinned, or, by the form Dependencies, which has no place for their hashes, the commit alone?
  bool pins_files() const { return !dependency.version && dependency.revision.empty(); }
};

class Lockfile {
 public:
  enum class Form { kVariants, kDependencies };
  static Lockfile parse(std::string_view text, const std::string& where);
  static Lockfile read(const std::filesystem::path& file);
  void write(const std::filesystem::path& file) const;
  std::string text() const;

  // Error where the repository is not locked, or locked more than once; `Kernel 'x' is not locked`.
  const LockedKernel& at(const std::string& repo) const;

  Form form = Form::kVariants;
  std::vector<LockedKernel> kernels;
};

// The lock of every variant below build/, tvm-ffi's too.
std::map<std::string, std::string> variant_hashes(const std::vector<TreeEntry>& tree);

// The same for a variant's folder on disk, from the bytes that lie there. Whether LFS holds a file is not in its bytes:
// `is_lfs` says so by the path below the variant; by default the name of the blob that the cache's link points at does.
using IsLfs = std::function<bool(const std::string& path)>;
std::string hash_locked_variant(const std::filesystem::path& folder, const IsLfs& is_lfs = nullptr,
                                const FilesInMemory& files = {});

// Error where the variant is not in the lock, or its files have another hash; also where the lock pins no files.
void verify_locked_variant(const LockedKernel& locked, const std::filesystem::path& folder,
                           const IsLfs& is_lfs = nullptr, const FilesInMemory& files = {});

// [tool.kernels.dependencies] of pyproject.toml ("org/k" = 1), or, `ours`, [dependencies] of hotswap.toml, whose values
// may also be specifiers ("org/k" = ">=1,<3") and tables ({version = 1} or {revision = "main"}).
std::vector<Dependency> parse_dependencies(const Json& table, bool ours);

}  // namespace hotswap
