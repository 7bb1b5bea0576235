// metadata.json of a built variant, kernel-builder's format: what is there is checked, unknown keys pass.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hotswap {

struct FileDigests {
  std::string algorithm = "sha256";          // or sha512
  std::map<std::string, std::string> files;  // path in the variant's folder -> base64 of the hash
  bool operator==(const FileDigests&) const = default;
};

struct KernelDepend {  // exactly one of version, revision
  std::string repo;
  std::optional<int64_t> version;
  std::string revision;
};

struct Provenance {
  std::string builder_version, builder_commit;  // of kernel-builder
  bool builder_dirty = false;
  std::string kernel_commit;  // of the package's own source; empty: not recorded
  bool kernel_dirty = false;
};

struct KernelMetadata {
  std::string name, id, license;  // id: the library's name and the ops' namespace
  int64_t version = 0;
  std::string backend;             // "cuda"
  std::vector<std::string> archs;  // "9.0+PTX", "gfx942"; empty: not recorded
  std::vector<std::string> python_depends;
  std::vector<KernelDepend> kernel_depends;
  std::string upstream, source;  // git URLs, or empty
  std::optional<FileDigests> digests;
  std::optional<Provenance> provenance;

  std::string python_name() const;  // '-' becomes '_'
  // What was built from changed sources: "kernel source", "kernel-builder".
  std::vector<std::string> dirty() const;
};

// Error that names `where` and the key.
KernelMetadata parse_metadata(std::string_view text, const std::string& where);

// What pip calls a name of python-depends, for this backend; none where kernels may not depend on it.
std::optional<std::string> python_requirement(const std::string& name, const std::string& backend);

bool is_kernel_name(std::string_view text);  // [a-z][-a-z0-9]*[a-z0-9]
bool is_git_url(std::string_view text);      // https, http, git, ssh, git+ssh, git+https, git+http, or user@host:path
// A path with '/' that stays inside the folder that it is relative to, under POSIX and Windows rules.
bool is_inside(std::string_view path);

}  // namespace hotswap
