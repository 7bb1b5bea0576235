// Where a kernel comes from: one grammar for layers and for attention.
//
//   org/repo  org/repo:Layer  org/repo@v2:Layer  org/repo@<tag, branch or commit>:Layer  org/repo@>=1,<3:Layer
//   /abs/path/to/package:Layer      a package folder on this machine
//   ""                              no kernel: the layer stays stock
//
// With what has no place in the text beside it:
//
//   const KernelRef ref("acme/mlp:SwiGLUMLP", {.version = 1, .trust = true});
//
// What follows '@' is a version (v2), versions (>=1,<3; PEP 440), a commit (40 hex digits), or a tag or branch, whose
// name may hold '/'. What it means in a repository is version.h's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hotswap {

struct KernelRefOptions {
  std::optional<int64_t> version = std::nullopt;  // one of version, revision
  std::string revision = {};
  bool trust = false;   // run it although its publisher is not a trusted one
  bool locked = false;  // only as the project's kernels.lock has it: an Error where it is not in there
};

class KernelRef {
 public:
  KernelRef() = default;               // stock
  KernelRef(const char* text);         // NOLINT(google-explicit-constructor)
  KernelRef(const std::string& text);  // NOLINT(google-explicit-constructor)
  KernelRef(std::string_view text, KernelRefOptions options);

  bool stock() const { return repo_.empty() && path_.empty(); }
  bool is_path() const { return !path_.empty(); }
  const std::string& repo() const { return repo_; }          // "org/repo", empty for a path
  const std::string& path() const { return path_; }          // absolute, empty for a repo
  const std::string& layer() const { return layer_; }        // empty: the mapping's own name
  const std::string& revision() const { return revision_; }  // as after '@'; empty: none given, or a version
  std::optional<int64_t> version() const { return version_; }
  bool is_specifier() const;  // revision() is versions as >=1,<3
  bool trust() const { return trust_; }
  bool locked() const { return locked_; }
  bool named() const { return version_.has_value() || !revision_.empty(); }  // says which one of the repository
  std::string str() const;                                                   // as written; "" for stock
  bool operator==(const KernelRef&) const = default;

 private:
  void parse_repo(std::string_view text);
  void check_revision(std::string_view text) const;
  std::string repo_, path_, layer_, revision_;
  std::optional<int64_t> version_;
  bool trust_ = false, locked_ = false;
};

// "kernels-community/liger_kernels" and "kernels-community/liger-kernels" are one repository by two spellings.
bool same_repo(std::string_view a, std::string_view b);

// "org/name" by the Hub's rules: letters, digits and ._- , at most 96, no '--', '..' or '.git' at the end.
bool is_repo_id(std::string_view text);
// What git takes for the name of a branch or tag.
bool is_ref_name(std::string_view text);

}  // namespace hotswap
