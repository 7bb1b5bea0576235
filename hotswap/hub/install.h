// A package that was built here, put into the Hub's cache as if it had been downloaded: afterwards Python's unmodified
// `kernels` and our own client find it offline by its name and version.
//
//   const InstalledPackage done = install_package(cache, "build/packages/norm", "acme/norm");
//   // HF_HUB_OFFLINE=1 python -c 'import kernels; kernels.get_kernel("acme/norm", version=1)'
//
// What is written is what a download leaves: blobs, a snapshot of links to them, the commit's list of files and, last,
// refs/v<version>. Only that last step makes the package visible; a run that is cut off before changes nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "hotswap/hub/cache/cache.h"
#include "hotswap/hub/serve/served_repos.h"

namespace hotswap {

// The folders with a metadata.json: `path` itself, or those in <path>/ and <path>/build/. Names that begin with a dot
// (a build that runs) are left out. Sorted; none where there are none.
std::vector<std::filesystem::path> built_variants(const std::filesystem::path& path);

// The name by which Python's `kernels` finds the CPU variant of a package without CUDA kernels where torch was built
// for CUDA: it takes no compiled variant of another backend than torch's. A host without Python never takes this name.
inline constexpr const char* kForCudaTorch = "torch-cuda";

// What a repository of this package holds: its variants, and the CPU variant again as kForCudaTorch where no variant is
// for CUDA.
struct BuiltPackage {
  std::string name;
  int64_t version = 0;
  std::vector<std::string> variants;
  std::map<std::string, ServedFile> files;  // build/<variant>/...
};

// Error where a variant's name, metadata or digests are not right, or where variants are not of one package and
// version.
BuiltPackage read_built_package(const std::filesystem::path& package);
// Error unless the name is one of the form ORG/NAME.
void check_repo_with_publisher(const Repo& repo);

struct InstalledPackage {
  std::string repo, name, commit;
  int64_t version = 0;
  std::vector<std::string> variants;
  std::filesystem::path snapshot;
  int64_t bytes = 0;
  std::string replaced;  // the commit that refs/v<version> named before; empty: none, or the same
};

// Error, and nothing changed that a reader could see: where a variant's name, metadata or digests are not right, or
// where variants are not of one package and version.
InstalledPackage install_package(const HubCache& cache, const std::filesystem::path& package, const std::string& repo);

}  // namespace hotswap
